"""Which tokens of a micro-batch attend to which, as segments: each sees itself and a part before it, without a mask.

A plain row is one segment. A row with branches is a segment for the shared prompt, and one for each branch, which sees
the prompt and itself. Rows that are packed one after the other are segments that see nothing of one another. So all
layouts are described alike, and the size of the description grows with the number of segments, not with the square of
the row's length.

Places are those of tokens in the flattened (B * L) micro-batch. Padding is in no segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

KernelName = Literal["sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"]
"""Kernels of attention; see `kernels`. The names are here because settings are read without torch."""
KERNELS: tuple[KernelName, ...] = get_args(KernelName)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens; each sees the tokens before it in the segment.

    Attributes:
        seen_start: place of the first token before the segment that all its tokens see.
        seen_stop: place after the last of these; `seen_start` without such tokens.
    """

    start: int
    stop: int
    seen_start: int = 0
    seen_stop: int = 0

    @property
    def length(self) -> int:
        """Tokens in it."""
        return self.stop - self.start

    @property
    def seen(self) -> int:
        """Tokens before it that it sees."""
        return self.seen_stop - self.seen_start

    @property
    def keys(self) -> NDArray[np.int64]:
        """(seen + length,) places that its last token sees, in order."""
        return np.concatenate([np.arange(self.seen_start, self.seen_stop), np.arange(self.start, self.stop)])


@dataclass(frozen=True, slots=True)
class Alike:
    """Segments of one shape, which one call of a kernel computes."""

    queries: NDArray[np.int64]
    keys: NDArray[np.int64]

    @property
    def seen(self) -> int:
        """Tokens before each segment that it sees."""
        return self.keys.shape[1] - self.queries.shape[1]


def alike(segments: Sequence[Segment]) -> list[Alike]:
    """Segments by their shape: as many calls of a kernel as there are shapes."""
    found: dict[tuple[int, int], list[Segment]] = {}
    for segment in segments:
        found.setdefault((segment.length, segment.seen), []).append(segment)
    return [
        Alike(
            np.stack([np.arange(segment.start, segment.stop) for segment in same]),
            np.stack([segment.keys for segment in same]),
        )
        for same in found.values()
    ]


@dataclass(frozen=True, slots=True)
class Joined:
    """Segments one after the other, as kernels of variable length take them.

    Attributes:
        queries: (Q,) places.
        keys: (K,) places; keys that several segments see occur once for each segment.
        query_ends: (segments + 1,) int32 where each segment's queries begin and end.
        key_ends: (segments + 1,) int32 where its keys begin and end.
    """

    queries: NDArray[np.int64]
    keys: NDArray[np.int64]
    query_ends: NDArray[np.int32]
    key_ends: NDArray[np.int32]


def joined(segments: Sequence[Segment]) -> Joined:
    """Segments for a kernel of variable length with a causal mask that is aligned at its lower right."""
    return Joined(
        queries=np.concatenate([np.arange(segment.start, segment.stop) for segment in segments]),
        keys=np.concatenate([segment.keys for segment in segments]),
        query_ends=_ends([segment.length for segment in segments]),
        key_ends=_ends([segment.seen + segment.length for segment in segments]),
    )


@dataclass(frozen=True, slots=True)
class Bounds:
    """For each place of a micro-batch the places that it sees: from `start` to itself, and from `seen` to its end.

    Attributes:
        start: (B * L,) first place of the segment; padding sees itself only.
        seen_start: (B * L,) first place before the segment that it sees.
        seen_stop: (B * L,) place after the last of these.
    """

    start: NDArray[np.int64]
    seen_start: NDArray[np.int64]
    seen_stop: NDArray[np.int64]


def bounds(segments: Sequence[Segment], places: int) -> Bounds:
    """Segments place by place, for kernels that evaluate a mask."""
    start = np.arange(places)
    seen_start = np.zeros(places, np.int64)
    seen_stop = np.zeros(places, np.int64)
    for segment in segments:
        own = slice(segment.start, segment.stop)
        start[own] = segment.start
        seen_start[own] = segment.seen_start
        seen_stop[own] = segment.seen_stop
    return Bounds(start, seen_start, seen_stop)


def _ends(lengths: Sequence[int]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
