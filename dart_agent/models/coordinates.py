"""Coordinate spaces of models, and the image size that a processor of the Qwen-VL family makes.

One rule for all formats, engines and the trainer: a model's numbers are scaled to the real screen in floating point and
rounded once, at the very end, to the nearest pixel (halves to the even one, as Python's `round`). The far edge, which
models of relative coordinates may name, belongs to the last pixel. Places off the screen stay off it, so that the
screen can report them. `pyautogui`, which published parsers end in, cuts the fraction off instead.

Source of `smart_resize`: Qwen2-VL's image processor; UI-TARS parses with the same rule (`README_coordinates.md`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_ASPECT_RATIO = 200
QWEN25_VL = {"min_pixels": 56 * 56, "max_pixels": 12_845_056}
"""Limits of its own image processor."""


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
    """Relation of a model's coordinates to the screen.

    Attributes:
        screen: (width, height) of the real screen in pixels.
        model: (width, height) of the range in which the model writes: the resized image for absolute coordinates
            (UI-TARS-1.5, Qwen2.5-VL), (1000, 1000) for relative ones (UI-TARS v1, Qwen2-VL), (1, 1) for fractions.
    """

    screen: tuple[int, int]
    model: tuple[int, int]

    def __post_init__(self) -> None:
        if min(*self.screen, *self.model) <= 0:
            raise ValueError(f"screen and model need positive sizes (width, height), got {self.screen}, {self.model}")

    @classmethod
    def for_image(cls, screen: tuple[int, int] | CoordinateSpace, **limits: int) -> CoordinateSpace:
        """The space itself; for a bare (width, height) that of an image resized within limits of `smart_resize`."""
        if isinstance(screen, CoordinateSpace):
            return screen
        height, width = smart_resize(screen[1], screen[0], **limits)
        return cls(screen, (width, height))

    @classmethod
    def relative(cls, screen: tuple[int, int] | CoordinateSpace, size: int) -> CoordinateSpace:
        """The space of a model that writes 0 to `size` on both axes, regardless of its image."""
        return cls(screen.screen if isinstance(screen, CoordinateSpace) else screen, (size, size))

    @classmethod
    def of(cls, screen: tuple[int, int] | CoordinateSpace) -> CoordinateSpace:
        """The space itself; for a bare (width, height) that of a model that saw the screenshot as it is."""
        return screen if isinstance(screen, CoordinateSpace) else cls(screen, screen)

    def to_screen(self, x: float, y: float) -> tuple[float, float]:
        """From the model's coordinates to screen pixels, unrounded and unclipped."""
        return x / self.model[0] * self.screen[0], y / self.model[1] * self.screen[1]

    def to_model(self, x: float, y: float) -> tuple[float, float]:
        """From screen pixels to the model's coordinates, unrounded."""
        return x / self.screen[0] * self.model[0], y / self.screen[1] * self.model[1]

    def pixel(self, x: float, y: float) -> tuple[int, int]:
        """Return the pixel of a model's point, by the rule of this module.

        Raises:
            ValueError: if a coordinate is not finite.
        """
        (width, height), (wide, high) = self.screen, self.model
        across, down = x / wide * width, y / high * height
        if not (math.isfinite(across) and math.isfinite(down)):
            raise ValueError("coordinates must be finite numbers")
        column = width - 1 if width - 0.5 <= across <= width else round(across)
        return column, height - 1 if height - 0.5 <= down <= height else round(down)

    def written(self, x: int, y: int) -> tuple[float, float]:
        """A pixel in the model's numbers: whole ones where they come back to the same pixel, else with a fraction."""
        across, down = self.to_model(x, y)
        whole = (round(across), round(down))
        if self.pixel(*whole) == (x, y):
            return whole
        return (across, down) if max(self.model) <= 1 else (round(across, 3), round(down, 3))
