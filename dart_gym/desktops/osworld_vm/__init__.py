"""Desktops elsewhere: machines that run OSWorld's in-VM server, used over HTTP.

`osworld_desktop.OSWorldDesktop` and `machine_address` are the face; `remote_input` runs on the machine.
"""
