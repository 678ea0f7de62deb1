"""Desktops elsewhere: machines that run OSWorld's in-VM server, used over HTTP.

Others import `osworld_desktop.OSWorldDesktop` and `machine_address`; `remote_input` runs on the machine, where
`sent_program` brings it.
"""
