"""Frames of an Xvfb screen, read from the file that `Xvfb -fbdir` maps: no copy through the X protocol.

The file is in the format of `xwd` (X11/XWDFile.h): a header of big-endian 32-bit words, a colour map, the pixels.
The server draws right into it, so a frame is always current; the cursor is not in it and is drawn by `draw_cursor`.
"""

import contextlib
import mmap
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dart_gym.core.errors import DesktopError
from dart_gym.desktops.base.desktop import DesktopSpec

_WORDS = struct.Struct(">25I")
_COLOR_BYTES = 12


@dataclass(frozen=True, slots=True)
class Cursor:
    """The pointer as drawn, from column x (maybe negative) and row y: (h, w, 4) uint8 BGRA, multiplied by alpha."""

    x: int
    y: int
    pixels: NDArray[np.uint8]


class Framebuffer:
    """A mapped screen. If a program truncates its file, the process that reads it ends with SIGBUS.

    Raises:
        DesktopError: if there is no screen.
    """

    def __init__(self, path: Path, spec: DesktopSpec) -> None:
        with open(path, "rb", opener=_open_regular) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        words = _WORDS.unpack_from(self._map)
        header_size = words[0]
        self.width = words[4]
        rows = words[5]
        self.height = spec.height
        byte_order = words[7]
        bits_per_pixel = words[11]
        bytes_per_line = words[12]
        colors = words[19]
        if bits_per_pixel != 32 or byte_order != 0:
            raise DesktopError(f"{path}: pixels of {bits_per_pixel} bits in order {byte_order}, not 32 in order 0")
        if (self.width, rows) != (spec.width, spec.drawn_height):
            raise DesktopError(f"{path}: {self.width}x{rows} pixels, not {spec.width}x{spec.drawn_height}")
        pixels = np.frombuffer(self._map, np.uint8, bytes_per_line * rows, header_size + colors * _COLOR_BYTES)
        lines = pixels.reshape(rows, bytes_per_line)
        shown = lines[:, : self.width * 4].reshape(rows, self.width, 4)
        self._rows = lines[: self.height]
        self._pixels = shown[: self.height]
        self._margin = shown[self.height :]

    def draw(self, frame: NDArray[np.uint8], cursor: Cursor | None = None) -> None:
        """Draw the screen into an (H, W, 3) uint8 RGB frame, and the cursor on top."""
        for channel in range(3):  # one strided copy per channel: twice as fast as reversing the axis
            frame[:, :, channel] = self._pixels[:, :, 2 - channel]
        if cursor is not None:
            draw_cursor(frame, cursor)

    def margin(self) -> NDArray[np.uint8]:
        """A (margin, W, 3) uint8 RGB copy of the rows below the screen."""
        return self._margin[:, :, 2::-1].copy()

    @property
    def raw(self) -> NDArray[np.uint32]:
        """The raw screen as (rows, words), current at each look."""
        return self._rows.view(np.uint32)

    def close(self) -> None:
        """Let go of the file, now: a reference cycle, as of an exception, may keep this object for long."""
        del self._rows, self._pixels, self._margin
        with contextlib.suppress(BufferError):  # a frame is just being read in a thread: it ends with that
            self._map.close()
        del self._map


def _open_regular(path: str, flags: int) -> int:
    """Open a file that is one, and no link, pipe or device in its place."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DesktopError(f"{path} is no regular file")
    return fd


def draw_cursor(frame: NDArray[np.uint8], cursor: Cursor) -> None:
    """Blend a cursor into an (H, W, 3) RGB frame in place, clipped to it."""
    height, width = frame.shape[:2]
    top, left = max(cursor.y, 0), max(cursor.x, 0)
    bottom = min(cursor.y + cursor.pixels.shape[0], height)
    right = min(cursor.x + cursor.pixels.shape[1], width)
    if top >= bottom or left >= right:
        return
    image = cursor.pixels[top - cursor.y : bottom - cursor.y, left - cursor.x : right - cursor.x]
    below = frame[top:bottom, left:right]
    transparency = 255 - image[:, :, 3:].astype(np.uint16)
    blended = image[:, :, 2::-1] + (below * transparency + 127) // 255
    below[:] = np.minimum(blended, 255)
