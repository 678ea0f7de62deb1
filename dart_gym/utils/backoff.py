"""Pauses between attempts at something that fails: each twice as long as the one before, up to a longest one."""

import asyncio
import math
import time

from dart_gym.utils.waits import retrying


def backoff(failures: int, first_s: float, longest_s: float = math.inf) -> float:
    """Seconds to wait after a failure: `first_s`, twice that, four times that, ... up to `longest_s`. Pure."""
    return min(longest_s, first_s * 2.0 ** min(max(failures - 1, 0), 30))


class Pauses:
    """The pauses between attempts, from `first_s` to `longest_s` seconds; none goes beyond the monotonic `deadline`."""

    def __init__(self, deadline: float, first_s: float, longest_s: float) -> None:
        self._deadline = deadline
        self._first = first_s
        self._longest = longest_s
        self._failures = 0

    def next(self) -> float | None:
        """Seconds to wait before the next attempt; None where that would go beyond the deadline."""
        self._failures += 1
        pause = backoff(self._failures, self._first, self._longest)
        return pause if time.monotonic() + pause <= self._deadline else None

    async def wait(self, otherwise: Exception, why: str = "") -> None:
        """Let some time pass before the next attempt; raises `otherwise` where that would go beyond the deadline.

        Args:
            otherwise: the error of the last attempt.
            why: what listeners are told meanwhile, where `otherwise` is true only once the deadline has passed.
        """
        pause = self.next()
        if pause is None:
            raise otherwise
        retrying(why or otherwise, pause)
        await asyncio.sleep(pause)
