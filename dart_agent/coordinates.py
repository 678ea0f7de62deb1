"""Coordinate spaces of models, and the image size that a processor of the Qwen-VL family makes.

Source of `smart_resize`: Qwen2-VL's image processor; UI-TARS parses with the same rule (`README_coordinates.md`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

MAX_ASPECT_RATIO = 200


def smart_resize(
    height: int, width: int, *, factor: int = 28, min_pixels: int = 100 * 28 * 28, max_pixels: int = 16384 * 28 * 28
) -> tuple[int, int]:
    """Size to which an image is resized before it is cut into patches.

    Both sides become multiples of `factor`, the area lies within [min_pixels, max_pixels], the aspect ratio is
    kept as well as that allows.

    Returns:
        (height, width) in pixels.

    Raises:
        ValueError: an aspect ratio above 200, or an empty image.
    """
    if height <= 0 or width <= 0:
        raise ValueError(f"image size must be positive, got {width}x{height}")
    if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
        raise ValueError(f"aspect ratio of {width}x{height} is above {MAX_ASPECT_RATIO}")
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        beta = math.sqrt(height * width / max_pixels)
        new_height = max(factor, math.floor(height / beta / factor) * factor)
        new_width = max(factor, math.floor(width / beta / factor) * factor)
    elif new_height * new_width < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * beta / factor) * factor
        new_width = math.ceil(width * beta / factor) * factor
    return new_height, new_width


@dataclass(frozen=True, slots=True)
class CoordinateSpace:
    """How a model's coordinates relate to the screen.

    Attributes:
        screen: (width, height) of the real screen in pixels.
        model: (width, height) of the range in which the model writes: the resized image for absolute coordinates
            (UI-TARS-1.5, Qwen2.5-VL), (1000, 1000) for relative ones (UI-TARS v1, Qwen2-VL).
    """

    screen: tuple[int, int]
    model: tuple[int, int]

    @classmethod
    def for_image(
        cls,
        screen: tuple[int, int],
        kind: Literal["absolute", "relative_1000"] = "absolute",
        *,
        min_pixels: int = 100 * 28 * 28,
        max_pixels: int = 16384 * 28 * 28,
    ) -> CoordinateSpace:
        """The space of a model that sees a screenshot of this screen."""
        if kind == "relative_1000":
            return cls(screen, (1000, 1000))
        height, width = smart_resize(screen[1], screen[0], min_pixels=min_pixels, max_pixels=max_pixels)
        return cls(screen, (width, height))

    def to_screen(self, x: float, y: float) -> tuple[float, float]:
        """From the model's coordinates to screen pixels, unrounded and unclipped."""
        return x / self.model[0] * self.screen[0], y / self.model[1] * self.screen[1]

    def to_model(self, x: float, y: float) -> tuple[float, float]:
        """From screen pixels to the model's coordinates, unrounded."""
        return x / self.screen[0] * self.model[0], y / self.screen[1] * self.model[1]
