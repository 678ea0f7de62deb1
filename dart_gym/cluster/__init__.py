"""The environment cluster: a server that lends desktops over websockets, and the client of its sessions."""
