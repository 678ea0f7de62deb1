"""Rollouts on desktops: workers that play one episode after the other, and what becomes of each."""
