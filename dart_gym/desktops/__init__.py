"""Desktops: a screen, a pointer, a keyboard, files and commands, and nothing about tasks.

`base.desktop` is the protocol and `factory.make_desktop` the way to get one by its spec; these two are what other rooms
use. The rooms below are the kinds of desktops (`xvfb`, `osworld_vm`, here `fake_desktop`) and their parts.
"""
