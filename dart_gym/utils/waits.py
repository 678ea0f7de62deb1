"""What this process waits for, so that a command line can say it. Libraries register waits; nothing is printed here.

    with waiting_for("an answer of http://host/v1", limit_s=180.0):
        ...

Invariant: a wait costs a dictionary entry; without a reader nothing else happens.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

SAID_AFTER_S = 10.0
LOOK_S = 1.0


@dataclass(slots=True)
class Wait:
    """One wait.

    Attributes:
        said_at: seconds of waiting after which it is said next; doubled each time.
    """

    what: str
    limit_s: float | None
    since: float = field(default_factory=time.monotonic)
    said_at: float = SAID_AFTER_S


running: dict[int, Wait] = {}
_numbers = itertools.count()
_listeners: list[Callable[[str], None]] = []


class waiting_for:  # noqa: N801  # used as a function; a generator's context takes three times as long
    """Register a wait for as long as the context is open."""

    __slots__ = ("_limit_s", "_number", "_what")

    def __init__(self, what: str, limit_s: float | None = None) -> None:
        self._number = next(_numbers)
        self._what = what
        self._limit_s = limit_s

    def __enter__(self) -> None:
        running[self._number] = Wait(self._what, self._limit_s)

    def __exit__(self, *error: object) -> None:
        del running[self._number]


def retrying(why: object, pause_s: float) -> None:
    """Tell the listeners that something is tried again after a pause."""
    when = f" in {pause_s:.1f} s" if pause_s >= 0.05 else ""
    for listener in _listeners:
        listener(f"{why}; trying again{when}")


def due(waits: list[Wait], now: float) -> list[str]:
    """Return a line for the longest of the waits for each thing that is due, and set when it is due next."""
    lines: dict[str, str] = {}
    for wait in sorted(waits, key=lambda one: one.since):
        waited = now - wait.since
        if waited < wait.said_at:
            continue
        wait.said_at = 2 * max(wait.said_at, waited)
        limit = f", at most {wait.limit_s:.0f} s" if wait.limit_s else ""
        lines.setdefault(wait.what, f"waiting for {wait.what} for {waited:.0f} s now{limit}")
    return list(lines.values())


@contextlib.contextmanager
def said(say: Callable[[str], None], rest_s: float = SAID_AFTER_S) -> Iterator[None]:
    """Have long waits said while the context is open: each kind of wait and of retry once in `rest_s` seconds."""
    end, told = threading.Event(), dict[str, float]()

    def once(kind: str, line: str) -> None:
        now = time.monotonic()
        if now - told.get(kind, -math.inf) >= rest_s:
            told[kind] = now
            say(line)

    def retried(line: str) -> None:
        once(line.partition(";")[0][:60], line)

    def watch() -> None:
        while not end.wait(LOOK_S):
            for line in due(list(running.values()), time.monotonic()):
                once(line.partition(" now")[0].rpartition(" for ")[0], line)

    _listeners.append(retried)
    threading.Thread(target=watch, name="waits", daemon=True).start()
    try:
        yield
    finally:
        end.set()
        _listeners.remove(retried)
