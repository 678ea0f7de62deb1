"""The deadline of the operation (reset, step, evaluation) that is under way, and of its parts.

A part that is told to wait past the deadline can say so at once, instead of being cut off without a reason. In an
operation that is judged, a part that a busy machine keeps from its work can have the deadline moved, at most by
`LONGEST_EXTENSION_S` in all.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Protocol, Self

LONGEST_EXTENSION_S = 600.0
"""Seconds by which the deadline of one operation can be moved. Servers tell their clients, which wait longer, too."""
LOOK_S = 5.0
"""How often it is looked whether what a busy machine has delayed has had its time by now."""
_BEGIN_S = 1.0
"""Most operations are over by then, and cost no look at what processes use."""

_CURRENT: ContextVar[OperationDeadline | None] = ContextVar("deadline", default=None)


class Judge(Protocol):
    """Decides who is late. Its methods are called in a thread, and may take a tenth of a second."""

    def begin(self) -> None:
        """Note what has been used until now."""

    def had_its_time(self) -> bool:
        """Return whether what is waited for is late by its own doing, and not since the machine has no time for it."""


class OperationDeadline:
    """Cancel the block after `seconds` and raise `TimeoutError`, as `asyncio.timeout` does. An async context manager.

    Args:
        seconds: the time, or infinity.
        judge: decides at the deadline who is late. Where the machine is, the block goes on if the operation is movable.
        movable: whether deadlines inside may be moved. The outermost operation decides.

    Attributes:
        own: whether the judge has found, at the deadline, that what was waited for is late by its own doing.
        extended: by how many seconds the deadline was moved.
    """

    def __init__(self, seconds: float, judge: Judge | None = None, *, movable: bool = False) -> None:
        self.own = False
        self.extended = 0.0
        self._seconds = seconds
        self._judge = judge
        self._movable = movable
        self._watch: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._outer = _CURRENT.get()
        if self._outer is not None:
            self._movable = self._outer._movable
        self._ends_at = time.monotonic() + self._seconds  # threads read it, too
        timed = self._judge is None and math.isfinite(self._seconds)
        self._limit = asyncio.timeout(self._seconds if timed else None)
        await self._limit.__aenter__()
        self._token: Token[OperationDeadline | None] = _CURRENT.set(self)
        if self._judge is not None:
            self._timer = loop.call_later(min(_BEGIN_S, self._seconds), self._begin, self._judge)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        _CURRENT.reset(self._token)
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._failure is not None:
                raise self._failure from None
            raise

    def _begin(self, judge: Judge) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._judged(judge), name="deadline")
        self._watch.add_done_callback(self._expire)

    async def _judged(self, judge: Judge) -> None:
        """Return when the block is to end."""
        await asyncio.to_thread(judge.begin)
        while not self.own:
            while (left := self._ends_at - time.monotonic()) > 0:  # it may have been moved meanwhile
                await asyncio.sleep(left)
            self.own = await asyncio.to_thread(judge.had_its_time)
            if not self.own and not keep_open(LOOK_S):
                return

    def _expire(self, watch: asyncio.Task[None]) -> None:
        self._failure = None if watch.cancelled() else watch.exception()
        if not self._closed and not watch.cancelled():
            self._limit.reschedule(asyncio.get_running_loop().time())

    def _chain(self) -> list[OperationDeadline]:
        return [self, *(self._outer._chain() if self._outer else [])]


def seconds_left() -> float:
    """Return the seconds until the deadline of the operation under way; infinity without one."""
    current = _CURRENT.get()
    if current is None:
        return math.inf
    return min(one._ends_at for one in current._chain()) - time.monotonic()


def keep_open(seconds: float) -> bool:
    """Move the deadline of the operation under way, and of those around it, to where `seconds` are left at least.

    Returns:
        False where there is no operation, where it may not be moved, has passed, or was moved enough already.
    """
    current, now = _CURRENT.get(), time.monotonic()
    chain = current._chain() if current else []
    moves = [(one, max(0.0, now + seconds - one._ends_at)) for one in chain]
    if not chain or any(
        not one._movable or one._closed or one._limit.expired() or one.extended + more > LONGEST_EXTENSION_S
        for one, more in moves
    ):
        return False
    for one, more in moves:
        one._ends_at += more
        one.extended += more
        if (when := one._limit.when()) is not None and more:
            one._limit.reschedule(when + more)
    return True
