"""Memory for one frame that two processes share, and that nobody can resize.

Invariants:
    - It has its full size before the other process sees it, and is sealed against shrinking and growing: a process that
      maps it can read it to its end, regardless of the other side.
    - The programs of the desktop have no way to it: no name, and no descriptor that they inherit.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref

import numpy as np
from numpy.typing import NDArray

from dart_gym.core.errors import DesktopError

_SEALS = sum(getattr(fcntl, f"F_SEAL_{name}", 0) for name in ("SHRINK", "GROW", "SEAL"))  # which Linux alone has


class FrameMemory:
    """Memory of a (height, width, 3) uint8 frame, which owns its descriptor `fd`.

    Raises:
        DesktopError: if the memory is not sealed against changes of its size.
    """

    def __init__(self, fd: int, height: int, width: int, *, writable: bool) -> None:
        self.fd = fd
        self._finalizer = weakref.finalize(self, os.close, fd)
        size = height * width * 3
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(fd).st_size != size:
            raise DesktopError(f"the memory for frames of {width}x{height} pixels is not as it was made")
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(fd, size, access=access)
        self.pixels: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8).reshape(height, width, 3)

    @classmethod
    def create(cls, height: int, width: int, *, writable: bool = False) -> FrameMemory:
        """New memory, sealed."""
        fd = os.memfd_create("desktop-frame", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, height * width * 3)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, height, width, writable=writable)

    def close(self) -> None:
        """Let go of the descriptor; the pages go with the last array that shows them."""
        self._finalizer()
        del self.pixels, self._map
