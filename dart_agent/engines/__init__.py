"""Engines generate responses. `base.Engine` is the protocol; nothing here imports torch at import time."""
