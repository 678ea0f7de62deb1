"""Listens on a port of a sandbox's own loopback, from outside, and hands the socket over.

    /usr/bin/python3 -I -S -c SOURCE PID PORT DESCRIPTOR

Run by the system's Python as the user that made the sandbox, who may enter its network as nobody inside may: so that
ports below 1024, which addresses without a port mean, need no capability inside. Imports nothing of this package.
"""

import ctypes
import fcntl
import os
import socket
import sys

NS_GET_USERNS = 0xB701
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


def main(pid, port, descriptor):
    """Enter the network of a process, listen, and send the socket."""
    libc = ctypes.CDLL(None, use_errno=True)
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    for opened, kind in ((fcntl.ioctl(network, NS_GET_USERNS), CLONE_NEWUSER), (network, CLONE_NEWNET)):
        if libc.setns(opened, kind):
            sys.exit(f"its network cannot be entered: {os.strerror(ctypes.get_errno())}")
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=128)
    with socket.socket(fileno=int(descriptor)) as connection:
        socket.send_fds(connection, [b"."], [listener.fileno()])


if __name__ == "__main__":
    main(*sys.argv[1:])
