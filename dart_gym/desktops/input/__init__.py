"""Typed actions -> pointer and keyboard events, as values.

Who sends them: `xvfb.x_input` and `osworld_vm.remote_input`.
"""
