"""Screenshots as servers take them: PNG in base64. Each is encoded once, in a thread, for all engines of the process.

Invariants:
    - A server gets the very pixels. Equal images have equal names, and different ones different names.
    - Memory is bounded: what was not used for longest is forgotten, and encoded again when it is wanted.
"""

import asyncio
import binascii
import hashlib
import os
import weakref
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dart_gym.utils.lru_cache import LRUCache
from dart_gym.utils.png import encode_png

CAPACITY = 64 << 20  # what is sent again is rare, and encoded within milliseconds
SMALL = 300_000  # bytes of pixels that are encoded sooner than a thread has begun


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One image.

    Attributes:
        name: hash of its content.
        base64: its PNG in base64; empty where the name alone was wanted.
    """

    name: str
    base64: bytes = b""

    @property
    def url(self) -> str:
        """It as a `data:` URL."""
        return f"data:image/png;base64,{self.base64.decode()}"


def encode(image: NDArray[np.uint8]) -> EncodedImage:
    """Encode an (H, W, 3) uint8 image."""
    data = encode_png(image)
    name = hashlib.blake2b(data, digest_size=16).hexdigest()
    return EncodedImage(name, binascii.b2a_base64(data, newline=False))


class ImageEncoder:
    """Encode images and keep the results: names as long as their images exist, PNGs as long as there is room.

    Args:
        capacity: most bytes of base64 that are kept.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        # By identity: to know an image by its pixels takes longer than to encode it.
        self.names: dict[int, tuple[weakref.ref[NDArray[np.uint8]], str]] = {}
        self._encoded: LRUCache[EncodedImage] = LRUCache(capacity, lambda encoded: len(encoded.base64))
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="image")

    async def encode(self, images: Sequence[NDArray[np.uint8]], unneeded: Container[str] = ()) -> list[EncodedImage]:
        """Return (H, W, 3) uint8 images encoded; they must not be changed afterwards.

        Args:
            images: to encode, with the GIL free where they are large.
            unneeded: names of images that the server already has: only their names are returned.
        """
        return [await self._one(image, unneeded) for image in images]  # at most the newest one is not known yet

    async def _one(self, image: NDArray[np.uint8], unneeded: Container[str]) -> EncodedImage:
        key = id(image)
        _, name = self.names.get(key, (None, ""))
        if name and name in unneeded:
            return EncodedImage(name)
        if kept := self._encoded.find(name):
            return kept
        if image.nbytes < SMALL:
            encoded = encode(image)
        else:
            encoded = await asyncio.get_running_loop().run_in_executor(self._threads, encode, image)
        self.names[key] = weakref.ref(image, lambda _: self.names.pop(key, None)), encoded.name
        self._encoded.keep(encoded.name, encoded)
        return EncodedImage(encoded.name) if encoded.name in unneeded else encoded


ENCODER = ImageEncoder()
"""The encoder of this process: an image is encoded once, for all replicas."""
