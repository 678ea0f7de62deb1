"""Typed actions -> pointer and keyboard events, as values.

`xvfb.x_hands` carries them out.
"""
