"""How a run got on: when trajectories were recorded and steps trained, and where that stood still. Pure.

A step counts when the trainer has more steps than ever before: those that it repeats after a crash are no progress.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch without progress: Unix times."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Hit:
    """A fault as it was carried out.

    Attributes:
        t: Unix time.
        victim: what was hit.
        kind: "kill" or "stop".
        for_s: seconds that it stood still.
        pid: of the process.
        waited_s: for the victim to be there.
    """

    t: float
    victim: str
    kind: str
    for_s: float
    pid: int
    waited_s: float


def advances(steps: Iterable[tuple[float, int]]) -> list[float]:
    """Times at which the number of steps rose above all before, from (time, number) in order."""
    best, times = -1, []
    for t, step in steps:
        if step > best:
            best = step
            times.append(t)
    return times


def gaps(times: Sequence[float], begin: float, end: float) -> list[Gap]:
    """All stretches between two advances within [begin, end], the edges included."""
    inside = [t for t in sorted(times) if begin < t < end]
    return [Gap(a, b) for a, b in pairwise([begin, *inside, end])]


def longest(found: Iterable[Gap]) -> Gap:
    """The longest stretch."""
    return max(found, key=lambda gap: gap.seconds)


def recovery_s(times: Sequence[float], hit: Hit, end: float) -> float:
    """Seconds from a hit until the first advance after it; until `end` if there is none."""
    later = bisect_right(times, hit.t)
    return (times[later] if later < len(times) else end) - hit.t


def gap_after(times: Sequence[float], hit: Hit, until: float) -> float:
    """The longest stretch without progress that begins or goes on after a hit and ends before `until`."""
    before = bisect_right(times, hit.t)
    begin = times[before - 1] if before else hit.t
    return longest(gaps(times, begin, max(until, hit.t))).seconds
