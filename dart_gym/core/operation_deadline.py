"""The deadline of the operation (reset, step, evaluation) that is under way, for parts of it that wait on purpose.

A part that is told to wait past the deadline can say so at once, instead of being cut off without a reason. A part that
a busy machine has kept from its work can have the deadline moved, at most by `LONGEST_EXTENSION_S` in all.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass

LONGEST_EXTENSION_S = 600.0
"""Seconds by which the deadline of one operation can be moved. Servers tell their clients, which wait longer, too."""


@dataclass(slots=True)
class _Deadline:
    """A deadline, inside the one that was set before it."""

    ends_at: float
    limit: asyncio.Timeout
    outer: _Deadline | None
    extended: float = 0.0

    def chain(self) -> list[_Deadline]:
        return [self, *(self.outer.chain() if self.outer else [])]


_CURRENT: ContextVar[_Deadline | None] = ContextVar("deadline", default=None)


@contextlib.asynccontextmanager
async def operation_deadline(seconds: float) -> AsyncIterator[None]:
    """Cancel the block after `seconds` and raise `TimeoutError`, as `asyncio.timeout` does."""
    outer = _CURRENT.get()
    async with asyncio.timeout(seconds) as limit:
        token = _CURRENT.set(_Deadline(time.monotonic() + seconds, limit, outer))
        try:
            yield
        finally:
            _CURRENT.reset(token)


def seconds_left() -> float:
    """Return the seconds until the deadline of the operation under way; infinity without one."""
    current = _CURRENT.get()
    return min(one.ends_at for one in current.chain()) - time.monotonic() if current else float("inf")


def extend_deadline(seconds: float) -> bool:
    """Move the deadline of the operation under way; return False where it has passed or was moved enough already."""
    current = _CURRENT.get()
    chain = current.chain() if current else []
    if any(one.limit.expired() or one.extended + seconds > LONGEST_EXTENSION_S for one in chain):
        return False
    for one in chain:
        one.ends_at += seconds
        one.extended += seconds
        when = one.limit.when()
        if when is not None:
            one.limit.reschedule(when + seconds)
    return True
