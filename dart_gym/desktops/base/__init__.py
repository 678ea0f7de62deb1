"""What every kind of desktop has in common: the protocol `Desktop`, its specs, frames, and when a screen has settled.

Imported by all kinds of desktops and by their users. Imports `dart_gym.core` only.
"""
