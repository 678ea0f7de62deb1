"""Screenshots of a batch by content hash: read once, cut into patches once, as long as memory allows.

A screenshot of 1932x1092 is 6 MiB of pixels and 50 MiB of patches in float32, so patches are made for a micro-batch
that runs and the one after it (in threads beside), never for a whole optimizer batch ahead. How many tokens an image
takes is known from its size, which its file's first bytes say: nothing is decoded for it.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dart_agent.models.image_patches import VisionSpec
from dart_gym.utils.lru_cache import LRUCache

Grid = tuple[int, int, int]
WORKERS = 2


class ImageCache:
    """Screenshots, (H, W, 3) uint8, the least recently used dropped; `size` gives (height, width) alone."""

    def __init__(
        self,
        load: Callable[[str], NDArray[np.uint8]],
        capacity_mb: int = 512,
        size: Callable[[str], tuple[int, int]] | None = None,
    ) -> None:
        self.capacity_mb = capacity_mb
        self._size = size
        self._load = load
        self._pixels: LRUCache[NDArray[np.uint8]] = LRUCache(capacity_mb << 20, lambda pixels: pixels.nbytes)

    def get(self, image_hash: str) -> NDArray[np.uint8]:
        """The screenshot with a hash."""
        return self._pixels.get(image_hash, self._load)

    def size(self, image_hash: str) -> tuple[int, int]:
        """(height, width) of the screenshot with a hash."""
        if self._size is not None:
            return self._size(image_hash)
        height, width, _ = self.get(image_hash).shape
        return height, width


class ImagePatches:
    """Inputs of the vision tower by content hash."""

    def __init__(self, vision: VisionSpec, images: ImageCache) -> None:
        self.vision, self._images = vision, images
        self._grids: dict[str, Grid] = {}
        self._coming: dict[str, Future[NDArray[np.float32]]] = {}
        self._patches: LRUCache[NDArray[np.float32]] = LRUCache(images.capacity_mb << 20, lambda cut: cut.nbytes)

    def grid(self, image_hash: str) -> Grid:
        """(frames, rows, columns) in patches."""
        if image_hash not in self._grids:
            self._grids[image_hash] = self.vision.grid_of(*self._images.size(image_hash))
        return self._grids[image_hash]

    def num_tokens(self, image_hash: str) -> int:
        """Number of its pads in a prompt."""
        frames, height, width = self.grid(image_hash)
        return frames * height * width // self.vision.merge_size**2

    def tensors(self, hashes: Sequence[str]) -> tuple[Tensor, Tensor]:
        """(patches, patch_dim) float32 of the images one after the other, and their (images, 3) grids."""
        patches = [self._patches.get(image_hash, self._come) for image_hash in hashes]
        grids = torch.tensor([self.grid(image_hash) for image_hash in hashes])
        return torch.from_numpy(np.concatenate(patches)), grids

    def cut_ahead(self, hashes: Iterable[str]) -> None:
        """Begin to read and cut images in threads; later calls for their tensors get these, or the error."""
        for image_hash in hashes:
            if image_hash not in self._coming and image_hash not in self._patches:
                self._coming[image_hash] = _workers().submit(self._cut, image_hash)

    def _come(self, image_hash: str) -> NDArray[np.float32]:
        coming = self._coming.pop(image_hash, None)
        return self._cut(image_hash) if coming is None else coming.result()

    def _cut(self, image_hash: str) -> NDArray[np.float32]:
        return self.vision.patchify(self._images.get(image_hash))


@cache
def _workers() -> ThreadPoolExecutor:
    """Threads that decode and cut: most of both is done without Python's lock."""
    return ThreadPoolExecutor(WORKERS, thread_name_prefix="patches")
