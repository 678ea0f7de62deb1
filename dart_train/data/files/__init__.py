"""Trajectories and screenshots as files, in a directory or an object store."""
