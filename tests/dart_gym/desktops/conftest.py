"""Fixtures of the desktop tests: real desktops that are stopped at the end, and a way to wait for a condition."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop


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
