"""Fixtures of the environments' tests: a way to wait for a condition."""

from __future__ import annotations

import pytest
from waiting import wait_for


@pytest.fixture
def until():
    """Waits until a function (or coroutine function) returns something true, and returns that."""
    return wait_for
