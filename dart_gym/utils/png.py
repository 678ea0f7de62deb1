"""PNGs of screens, as fast as they can be made: exact pixels, no filters, deflated by ISA-L.

On drawn screens they are as small as those with filters, and made in a twentieth of the time
(docs/results/performance.md).
"""

import struct

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
HEAD = 24
"""Bytes of a PNG up to the end of its size."""


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """Return an (H, W, 3) uint8 image as PNG. Lets other threads run meanwhile."""
    height, width = image.shape[:2]
    rows = np.zeros((height, 1 + width * 3), np.uint8)  # each row begins with its filter type, 0: none
    rows[:, 1:] = image.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = ((b"IHDR", header), (b"IDAT", isal_zlib.compress(rows.data, 1)), (b"IEND", b""))
    return SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", isal_zlib.crc32(kind + data))
        for kind, data in chunks
    )


def png_size(head: bytes) -> tuple[int, int] | None:
    """(height, width) by the first bytes of a PNG; None where they are of something else, or too few."""
    if len(head) < HEAD or head[:8] != SIGNATURE or head[12:16] != b"IHDR":
        return None
    width, height = struct.unpack(">II", head[16:24])
    return height, width
