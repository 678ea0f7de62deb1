"""Waiting for a condition in synchronous tests: looked at again and again, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    timeout_s: float = 60.0,
    *,
    trouble: Callable[[], object] = lambda: None,
    explain: Callable[[], object] = lambda: "the condition did not come true",
    look_s: float = 0.01,
) -> T:
    """Wait until a function returns something true, and return that.

    Args:
        condition: looked at until it is true.
        timeout_s: longest wait in seconds; then an assertion fails.
        trouble: looked at as well: something true, such as an error, ends the wait at once, and is its reason.
        explain: what to say when the time is over.
        look_s: seconds between two looks.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert not (reason := trouble()), reason
        assert time.monotonic() < deadline, f"after {timeout_s:g} s: {explain()}"
        time.sleep(look_s)
    return value
