"""Work on episodes that have ended: something is added to each, then it is recorded. No worker waits for this.

Invariants:
    - Each episode that is handed in is recorded exactly once, with what was added by then.
    - When the service ends, episodes that are not done within the time limit are recorded as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dart_agent.episodes.trajectory import Trajectory

Record = Callable[[Trajectory, int], None]
"""Records an episode, with the number of members that complete its group."""
MOST_WAITING = 64
"""Episodes that may wait before workers begin no new ones."""


class EndedEpisodes:
    """Works on ended episodes, many at the same time.

    Args:
        add: adds to the episode in a list of one, by replacing it; must not raise.
        record: takes each finished episode.
    """

    def __init__(self, add: Callable[[list[Trajectory]], Awaitable[None]], record: Record) -> None:
        self._add = add
        self._record = record
        self._running: dict[asyncio.Task[None], None] = {}

    @property
    def waiting(self) -> int:
        """Episodes that were handed in and are not recorded yet."""
        return len(self._running)

    @property
    def full(self) -> bool:
        """Return whether workers should wait before they begin new episodes."""
        return len(self._running) >= MOST_WAITING

    def hand_in(self, trajectory: Trajectory, expected: int) -> None:
        """Add to an episode, then record it; returns at once."""
        task = asyncio.create_task(self._work(trajectory, expected))
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))

    async def settle(self, limit_s: float) -> None:
        """Wait for the episodes in work; record those that take longer than the limit as they are."""
        if self._running:
            await asyncio.wait([*self._running], timeout=limit_s)
        left = [*self._running]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _work(self, trajectory: Trajectory, expected: int) -> None:
        standing = [trajectory]
        try:
            await self._add(standing)
        finally:  # also when cancelled
            self._record(standing[0], expected)
