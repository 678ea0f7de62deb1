"""Forks: an episode played on from one of its steps, on another desktop that was brought there by replaying it."""
