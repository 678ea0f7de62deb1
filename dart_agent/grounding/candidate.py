"""Questions to a grounder and its answers: places in pixels of the real screen, regardless of the model's image size.

A grounder that finds nothing answers with no candidate, it never guesses; the first candidate is the best one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of the screen, its edges in pixels from the left and from the top."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def area(self) -> float:
        """In square pixels; 0 where an edge lies beyond its opposite."""
        return max(0.0, self.right - self.left) * max(0.0, self.bottom - self.top)

    def contains(self, x: float, y: float) -> bool:
        """Return whether a point lies on it, its edges included, as ScreenSpot counts."""
        return self.left <= x <= self.right and self.top <= y <= self.bottom


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place that may be meant. `score`: higher is likelier, NaN if unknown; `region`: what speaks for it."""

    x: int
    y: int
    score: float = math.nan
    region: Box | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A description, and the (H, W, 3) uint8 screenshot that it is sought on."""

    description: str
    screenshot: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Grounding:
    """An answer: candidates, best first; (rows, columns) of attention that sum to 1, from grounders that have it."""

    candidates: tuple[Candidate, ...]
    attention: NDArray[np.float32] | None = None


class Grounder(Protocol):
    """Finds elements. Both raise `EngineError`."""

    async def locate(self, description: str, screenshot: NDArray[np.uint8], k: int = 1) -> list[Candidate]:
        """At most k candidates on an (H, W, 3) screenshot, best first."""

    async def locate_batch(self, queries: Sequence[Query], k: int = 1) -> list[Grounding]:
        """The same for many queries at once."""
