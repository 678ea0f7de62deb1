"""Engines: who generates. `base.Engine` is the protocol; nothing here imports torch at import time."""
