"""A task on a desktop: `Session` resets, steps and scores; the slot holds the desktop; pacing says how long to wait.

Knows no sockets: the cluster's server runs these sessions for its clients.
"""
