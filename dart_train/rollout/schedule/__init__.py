"""Scheduling: pure decisions about which rollout is played next."""
