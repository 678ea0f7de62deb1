"""What crosses the connection between a client and the environment cluster: addresses, frames, image codecs, errors.

Pure functions of values; used by both sides.
"""
