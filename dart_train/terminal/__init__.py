"""The terminal's view of a run while it runs."""
