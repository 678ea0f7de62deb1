"""Policies: anything that turns observations into actions."""
