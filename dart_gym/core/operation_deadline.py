"""The deadline of the operation (reset, step, evaluation) that is under way, for parts of it that wait on purpose.

A part that is told to wait past the deadline can say so at once, instead of being cut off without a reason.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextvars import ContextVar

_ENDS_AT: ContextVar[float] = ContextVar("ends_at", default=float("inf"))


@contextlib.asynccontextmanager
async def operation_deadline(seconds: float) -> AsyncIterator[None]:
    """Cancel the block after `seconds` and raise `TimeoutError`, as `asyncio.timeout` does."""
    token = _ENDS_AT.set(min(_ENDS_AT.get(), time.monotonic() + seconds))
    try:
        async with asyncio.timeout(seconds):
            yield
    finally:
        _ENDS_AT.reset(token)


def seconds_left() -> float:
    """Return the seconds until the deadline of the operation under way; infinity without one."""
    return _ENDS_AT.get() - time.monotonic()
