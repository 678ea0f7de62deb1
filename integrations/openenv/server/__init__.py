"""The server of a Space."""
