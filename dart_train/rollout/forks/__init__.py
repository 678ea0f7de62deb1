"""Forks: continuing a recorded episode from one of its steps, on another desktop that replays the steps before."""
