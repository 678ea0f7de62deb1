"""Comparison of two screenshots after painting over what changes by itself: the pointer and clocks. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_agent.episodes.trajectory import Step

Pixels = NDArray[np.uint8]
POINTER = 24
"""Half the side, in pixels of the real screen, of the square that hides a pointer."""


def pointer_after(step: Step, before: tuple[int, int] | None) -> tuple[int, int] | None:
    """Where a step's actions left the pointer, in pixels of the real screen; None where nobody knows."""
    at = before
    for action in step.actions:
        points: Sequence[Sequence[Any]] = [(action.get("x"), action.get("y")), *action.get("path", ())]  # a drag's last
        for x, y in points:
            if x is not None and y is not None:
                at = int(x), int(y)
    return at


def painted(
    image: Pixels,
    screen: tuple[int, int],
    at: tuple[int, int] | None,
    pointer: int = POINTER,
    masked: Sequence[tuple[int, int, int, int]] = (),
) -> Pixels:
    """Return a copy of a screenshot with the pointer, where it is known, and boxes painted over.

    Args:
        image: (H, W, 3), perhaps smaller than the screen.
        screen: (width, height) of the real screen, in whose pixels places are given; (0, 0) for those of the image.
        at: where the pointer is.
        pointer: half the side of the square that is painted over it.
        masked: (x, y, width, height) of boxes.
    """
    hidden = image.copy()
    height, width = image.shape[:2]
    across, down = (width / screen[0], height / screen[1]) if all(screen) else (1.0, 1.0)
    own = [(at[0] - pointer, at[1] - pointer, 2 * pointer, 2 * pointer)] if at and pointer else []
    for x, y, wide, high in (*masked, *own):
        left, top = max(0, round(x * across)), max(0, round(y * down))
        hidden[top : max(0, round((y + high) * down)), left : max(0, round((x + wide) * across))] = 0
    return hidden


def difference(one: Pixels, other: Pixels, screen: tuple[int, int], at: tuple[int, int] | None) -> float:
    """Return the share of pixels, in [0, 1], in which two screenshots differ, the pointer apart; 1 for other sizes."""
    if one.shape != other.shape:
        return 1.0
    unequal = painted(one, screen, at) != painted(other, screen, at)
    return float(unequal.any(axis=-1).mean())
