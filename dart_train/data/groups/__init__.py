"""Rows of trajectories, groups, leases and checkpoints: functions of one transaction each."""
