"""Pauses between attempts at something that is busy: each twice as long as the one before, until a deadline."""

from __future__ import annotations

import asyncio
import time

from dart_agent.engines.base.engine import EngineError


class Pauses:
    """The pauses of one request.

    Args:
        deadline: on the monotonic clock; no pause goes beyond it.
        first: seconds of the first pause.
        longest: seconds of any.
    """

    def __init__(self, deadline: float, *, first: float, longest: float) -> None:
        self._deadline, self._next, self._longest = deadline, first, longest

    async def wait(self, otherwise: EngineError) -> None:
        """Let some time pass before the next attempt.

        Args:
            otherwise: raised where the time is over.
        """
        if time.monotonic() + self._next > self._deadline:
            raise otherwise
        await asyncio.sleep(self._next)
        self._next = min(self._longest, 2 * self._next)
