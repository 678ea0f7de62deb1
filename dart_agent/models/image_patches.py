"""Images -> patches, in numpy only, bit for bit as the Qwen2-VL image processor (its PIL variant) makes them.

Engine and trainer both use it, so that what was sampled from is what is trained on. A `VisionSpec` is read from
the model's own `preprocessor_config.json`; sizes are rounded by `coordinates.smart_resize`, so clicks fit too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_agent.models.coordinates import CoordinateSpace, smart_resize
from dart_gym.core.errors import ConfigurationError

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """How a model expects its images.

    Attributes:
        merge_size: patches on each side of the square that becomes one token.
        temporal_patch_size: frames per patch; a still image is repeated.
        min_pixels: images are enlarged to at least this area.
        max_pixels: images are shrunk to at most this area.
    """

    patch_size: int = 14
    merge_size: int = 2
    temporal_patch_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    image_mean: tuple[float, ...] = CLIP_MEAN
    image_std: tuple[float, ...] = CLIP_STD
    _table: NDArray[np.float32] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A pixel has 256 values, so normalising is a look-up; the formula is the processor's, in its precisions.
        levels = (np.arange(256).astype(np.float64) * (1 / 255)).astype(np.float32)
        mean, std = np.asarray(self.image_mean, np.float32), np.asarray(self.image_std, np.float32)
        object.__setattr__(self, "_table", ((levels[None] - mean[:, None]) / std[:, None]).astype(np.float32))

    @classmethod
    def from_dir(cls, model_dir: str | Path) -> VisionSpec:
        """Read a model directory's specification.

        Raises:
            ConfigurationError: if the image processor is not supported.
        """
        data = image_settings(Path(model_dir))
        if not data.get("do_rescale", True) or not data.get("do_normalize", True) or not data.get("do_resize", True):
            raise ConfigurationError(
                f"{model_dir}: an image processor that does not resize, rescale and normalise is not supported"
            )
        size = data.get("size") or {}
        return cls(
            patch_size=data.get("patch_size", 14),
            merge_size=data.get("merge_size", 2),
            temporal_patch_size=data.get("temporal_patch_size", 2),
            min_pixels=data.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels") or 56 * 56,
            max_pixels=data.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels") or 28 * 28 * 1280,
            image_mean=tuple(data.get("image_mean") or CLIP_MEAN),
            image_std=tuple(data.get("image_std") or CLIP_STD),
        )

    @property
    def factor(self) -> int:
        """Pixels of a token's side."""
        return self.patch_size * self.merge_size

    @property
    def patch_dim(self) -> int:
        """Numbers in a patch: channels * frames * side * side."""
        return len(self.image_mean) * self.temporal_patch_size * self.patch_size**2

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) that an image of this size gets. Raises ValueError for absurd aspect ratios."""
        return smart_resize(height, width, factor=self.factor, min_pixels=self.min_pixels, max_pixels=self.max_pixels)

    def space(self, height: int, width: int) -> CoordinateSpace:
        """Absolute coordinates of a model that sees a screen of this size through this specification."""
        new_height, new_width = self.resized(height, width)
        return CoordinateSpace((width, height), (new_width, new_height))

    def resize(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Resize (H, W, 3) uint8 to the grid; the same array where nothing is to be done."""
        height, width = self.resized(*image.shape[:2])
        if (height, width) == image.shape[:2]:
            return image
        return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))

    def grid(self, image: NDArray[np.uint8]) -> tuple[int, int, int]:
        """(frames, rows, columns) in patches, as the model's `image_grid_thw`."""
        return self.grid_of(*image.shape[:2])

    def grid_of(self, height: int, width: int) -> tuple[int, int, int]:
        """The same for an image of this size. Raises ValueError for absurd aspect ratios."""
        height, width = self.resized(height, width)
        return 1, height // self.patch_size, width // self.patch_size

    def num_tokens(self, image: NDArray[np.uint8]) -> int:
        """Return the number of `<|image_pad|>` tokens of an image."""
        _, rows, columns = self.grid(image)
        return rows * columns // self.merge_size**2

    def patchify(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Cut an image (resized first if need be) into normalised patches.

        Args:
            image: (H, W, 3) uint8 RGB.

        Returns:
            (rows * columns, patch_dim) float32 in the model's order: patches of one token lie together.
        """
        image = self.resize(image)
        side = self.patch_size
        merge = self.merge_size
        frames = self.temporal_patch_size
        height, width, channels = image.shape
        rows, columns = height // side, width // side
        pixels = image.reshape(rows // merge, merge, side, columns // merge, merge, side, channels)
        pixels = pixels.transpose(0, 3, 1, 4, 6, 2, 5).reshape(rows * columns, channels, 1, side, side)
        out = np.empty((rows * columns, channels, frames, side, side), np.float32)
        for channel in range(channels):
            out[:, channel] = self._table[channel][pixels[:, channel]]
        return out.reshape(rows * columns, self.patch_dim)


def image_settings(model_dir: Path) -> dict[str, Any]:
    """Read the image processor's settings from either of transformers' files.

    Raises:
        ConfigurationError: if the directory has neither.
    """
    path = model_dir / "preprocessor_config.json"
    if path.is_file():
        return json.loads(path.read_text())
    path = model_dir / "processor_config.json"
    if path.is_file() and "image_processor" in (data := json.loads(path.read_text())):
        return data["image_processor"]
    raise ConfigurationError(f"{model_dir} has no preprocessor_config.json: not a directory of a Qwen-VL model")
