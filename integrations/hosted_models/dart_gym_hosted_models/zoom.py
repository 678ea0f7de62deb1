"""An action that no desktop takes: a closer look at a part of the screenshot."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dart_gym.core import actions as a


@dataclass(frozen=True, slots=True)
class Zoom(a.Action):
    """Look closer at a part of the newest screenshot: [left, right) times [top, bottom) in pixels of the screen.

    No desktop takes it: who plays shows the policy that part (`cropped`) as its next observation.
    """

    region: tuple[int, int, int, int]

    def __post_init__(self) -> None:
        left, top, right, bottom = self.region
        if not (0 <= left < right and 0 <= top < bottom):
            raise ValueError(f"a region is (left, top, right, bottom) with some area, got {self.region}")

    def cropped(self, screenshot: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The part of an (H, W, 3) screenshot. Raises ValueError where it lies off the screen."""
        left, top, right, bottom = self.region
        height, width = screenshot.shape[:2]
        if right > width or bottom > height:
            raise ValueError(f"the region {self.region} is not within the screen of {width}x{height}")
        return screenshot[top:bottom, left:right]
