"""Small tools without knowledge of desktops: child processes, an event loop in a thread, Prometheus's text, plug-ins.

May be imported from anywhere. Imports `dart_gym.core` at most.
"""
