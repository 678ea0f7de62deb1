"""Screens of a server on this machine, by memory that its client maps: the codec "shared".

A client on a Unix socket whose server runs as the same user can open the server's descriptors; so the server copies a
screen into sealed memory of its session, the reply says where that is, and the client copies it out. That is two copies
in place of the dozen that a socket and a websocket make.

Invariants:
    - A client offers it only where it can open the descriptors of whom the kernel names at the other end, and names it;
      a server takes the offer only if that is itself, and nobody in between. Else screens cross as bytes, with the same
      content.
    - A session has one request under way: the memory holds the screen of its last reply until the next request.
    - The client opens nothing but a descriptor of its server, and maps it only if it is sealed against resizing.
"""

import os
import re
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_gym.core.errors import DesktopError, ProtocolError
from dart_gym.desktops.base.frame_memory import FrameMemory
from dart_gym.utils.processes import own_pid_namespace

SHARED = "shared"
LEAST_BYTES = 1 << 16  # of an image; less costs less in the reply itself than a mapping of its own
MAX_SIDE = 16_384
_CREDENTIALS = struct.Struct("3i")


def peer_of(connection: socket.socket) -> int:
    """Pid of the other side of a Unix socket when it is of this user and can be seen from here; else 0."""
    if connection.family != socket.AF_UNIX:
        return 0
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid if uid == os.getuid() else 0


def offers(connection: socket.socket) -> tuple[str, ...]:
    """Return what a client may offer before its codecs: to share memory with the process at the other end."""
    pid = peer_of(connection)
    try:
        os.listdir(f"/proc/{pid}/fd")
        return (offer_of(pid),) if os.readlink(f"/proc/{pid}/ns/pid") == own_pid_namespace() else ()
    except OSError:
        return ()


def offer_of(pid: int) -> str:
    """The offer to share the memory of a process of this pid namespace."""
    return f"{SHARED} {own_pid_namespace()} {pid}"


def taken(codecs: Sequence[str]) -> tuple[str, ...]:
    """A client's codecs as its server understands them: the offer to share this very process's memory is one."""
    own = offer_of(os.getpid())
    return tuple(SHARED if codec == own else codec for codec in codecs if codec != SHARED)


class FrameSender:
    """The server's end, for one session; `bytes` counts all screens that it has taken."""

    def __init__(self) -> None:
        self.bytes = 0
        self._memory: FrameMemory | None = None
        self._number = 0

    def put(self, image: NDArray[np.uint8]) -> list[Any]:
        """Copy a screen into the memory; `["shared", height, width, path, number]`, which tells where it is."""
        height, width = image.shape[:2]
        if self._memory is None or self._memory.pixels.shape != image.shape:
            if self._memory is not None:
                self._memory.close()
            self._memory = FrameMemory.create(height, width, writable=True)
            self._number += 1  # a descriptor's number may come again
        np.copyto(self._memory.pixels, image)
        self.bytes += image.nbytes
        return [SHARED, height, width, f"/proc/{os.getpid()}/fd/{self._memory.fd}", self._number]


class FrameReceiver:
    """The client's end, for one connection."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: list[Any] = []
        self._memory: FrameMemory | None = None

    def get(self, description: list[Any]) -> NDArray[np.uint8]:
        """A copy of the screen that a description tells of; raises `ProtocolError`."""
        if self._memory is None or description != self._known:
            if self._memory is not None:
                self._memory.close()
            self._memory, self._known = self._open(description), description
        return self._memory.pixels.copy()

    def _open(self, description: list[Any]) -> FrameMemory:
        match description:
            case [str(), int(height), int(width), str(path), int()] if 0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE:
                if re.fullmatch(rf"/proc/{self._pid}/fd/\d+", path):
                    try:
                        return FrameMemory(os.open(path, os.O_RDONLY | os.O_CLOEXEC), height, width, writable=False)
                    except (OSError, DesktopError) as error:
                        raise ProtocolError(
                            f"the server's memory cannot be used: {error}; next step: choose the codec raw"
                        ) from None
        raise ProtocolError(f"no description of shared memory: {description!r:.200}")
