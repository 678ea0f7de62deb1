"""Fixtures of the environments' tests: a way to wait for a condition, real desktops that are stopped at the end."""

from __future__ import annotations

import pytest
from waiting import wait_for

from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop


@pytest.fixture
def until():
    """Waits until a function (or coroutine function) returns something true, and returns that."""
    return wait_for


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
