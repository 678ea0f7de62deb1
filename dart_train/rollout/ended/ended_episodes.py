"""Episodes that have ended: something is added to each, and then it is recorded. No worker waits for that.

Invariants:
    - Each episode that is handed in is recorded exactly once, with what was added to it until then.
    - At the end what is not done within the time is recorded as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dart_agent.episodes.trajectory import Trajectory

Record = Callable[[Trajectory, int], None]
"""Has an episode recorded, with the number of members that complete its group."""
MOST_WAITING = 64
"""Episodes that may wait before workers begin no more."""


class EndedEpisodes:
    """A desk for ended episodes.

    Args:
        add: adds to the episode that stands in the list, by putting another one in its place; it must not raise.
        record: takes what is done.
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
        """Return whether no episode should be begun before some are done."""
        return len(self._running) >= MOST_WAITING

    def hand_in(self, trajectory: Trajectory, expected: int) -> None:
        """Add to an episode, and have it recorded."""
        task = asyncio.create_task(self._work(trajectory, expected))
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))

    async def settle(self, limit_s: float) -> None:
        """Wait for what is being done; what takes longer is recorded as it is."""
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
        finally:  # told to end as well
            self._record(standing[0], expected)
