"""Common parts of action formats: the protocol, and readers of calls, JSON fields, Python literals and key chords.

For the formats in the folder above; text of a model is read, never run.
"""
