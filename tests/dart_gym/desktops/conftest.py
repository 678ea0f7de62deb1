"""Fixtures of the desktop tests: real desktops that are stopped at the end, and a way to wait for a condition."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dart_gym.desktops import make_desktop
from dart_gym.desktops.base import DesktopSpec


@pytest.fixture
async def start_desktop():
    """Starts a desktop from the fields of its spec; small unless told otherwise."""
    started = []

    async def start(**fields):
        desktop = make_desktop(DesktopSpec(**{"width": 320, "height": 240, **fields}))
        started.append(desktop)
        await desktop.start()
        return desktop

    yield start
    for desktop in started:
        await desktop.stop()


@pytest.fixture
def until():
    """Waits until a function (or coroutine function) returns something true, and returns that."""

    async def wait(condition: Callable[[], object | Awaitable[object]], timeout: float = 10.0):
        deadline = time.monotonic() + timeout
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            assert time.monotonic() < deadline, "the condition did not come true"
            await asyncio.sleep(0.01)

    return wait


@pytest.fixture
def descendants():
    """All processes below one, by the kernel's tables."""

    def collect(pid: int) -> set[int]:
        found: set[int] = set()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                for child in map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split()):
                    found |= {child} | collect(child)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended in between
        return found

    return collect
