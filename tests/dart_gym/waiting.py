"""Waiting for a condition, in tests."""

from __future__ import annotations

import asyncio
import time
from typing import Any


async def wait_for(condition: Any, timeout: float = 30.0) -> Any:
    """Wait until a function (or coroutine function) returns something true, and return that."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)
