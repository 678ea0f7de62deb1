"""How long a step waits for what it looks at again and again.

Invariants:
    - In an evaluation, what a busy machine delays is waited for until the desktop has had its time: neither is an
      agent's work judged before its program has saved it, nor is what never comes about the machine's failure.
"""

import asyncio
import time
from collections.abc import Callable

from dart_gym.core.errors import DesktopTimeoutError
from dart_gym.core.operation_deadline import LOOK_S, Judge, keep_open
from dart_gym.tasks.screen.idleness import wait_until_idle
from dart_gym.tasks.setup.setup_step import Surroundings


class StepLimit:
    """A time limit in seconds, from now on."""

    def __init__(self, where: Surroundings, seconds: float) -> None:
        self._ends_at = time.monotonic() + seconds
        self._seconds = seconds
        judge: Callable[[], Judge] | None = getattr(where.desktop, "judge", None)  # it may be a watched one
        self._judge = judge() if where.evaluating and judge is not None else None
        self._begun = False

    async def has_passed(self) -> bool:
        """Return whether to give up.

        Raises:
            DesktopTimeoutError: in an evaluation, if the machine had no time for the desktop, however long it took.
        """
        if self._judge is not None and not self._begun:
            self._begun = True
            await asyncio.to_thread(self._judge.begin)
        if time.monotonic() <= self._ends_at:
            return False
        if self._judge is None or await asyncio.to_thread(self._judge.had_its_time):
            return True
        if not keep_open(2 * LOOK_S):
            raise DesktopTimeoutError(f"the machine has no time for the desktop, which was given {self._seconds:g} s")
        self._ends_at = time.monotonic() + LOOK_S
        return False


async def work_done(where: Surroundings, seconds: float) -> None:
    """Wait until the programs of a desktop have done what they were told, for about that long at most."""
    limit = StepLimit(where, seconds)
    while not await limit.has_passed():
        found = await wait_until_idle(where.desktop, timeout=seconds)
        if found.stable or found.waited_s < seconds:
            return
