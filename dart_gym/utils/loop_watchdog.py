"""Watches an event loop from a thread: says where it hangs, and ends the process when it does not come back.

Invariants:
    - Silence is counted in ticks that the thread itself lived through, so that a process that was stopped, or a machine
      that slept, is not mistaken for a loop that hangs.
    - A supervisor sees an ordinary exit and starts the process again.
"""

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TICK_S = 1.0
TOLD_TICKS = 10
LAST_TICKS = 60
STALLED_STATUS = 75
"""Exit status of a process whose event loop hung: `EX_TEMPFAIL` of sysexits.h."""


class EventLoopStalled(Exception):
    """An event loop did not run for too long, and its process was ended."""


class LoopWatchdog:
    """A thread that looks at a loop each `tick_s`, prints all stacks after `told_ticks`, ends it after `last_ticks`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        tick_s: float = TICK_S,
        told_ticks: int = TOLD_TICKS,
        last_ticks: int = LAST_TICKS,
        end: Callable[[str], None] | None = None,
    ) -> None:
        self._loop = loop
        self._tick_s = tick_s
        self._told_ticks = told_ticks
        self._last_ticks = last_ticks
        self._end = end or _end_process
        self._answered, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-watchdog", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the thread."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        silent = 0
        self._ask()
        while not self._over.wait(self._tick_s):
            if self._answered.is_set():
                silent = 0
                self._answered.clear()
                self._ask()
                continue
            silent += 1
            if silent == self._told_ticks:
                print(f"the event loop has not run for {silent * self._tick_s:g} s; all stacks:", file=sys.stderr)
                faulthandler.dump_traceback(sys.stderr)
            if silent == self._last_ticks:
                self._end(f"the event loop did not run for {silent * self._tick_s:g} s; where it hung is above")
                return

    def _ask(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._answered.set)
        except RuntimeError:
            self._over.set()  # it is closed


def _end_process(message: str) -> None:
    print(f"error: {EventLoopStalled.__name__}: {message}", file=sys.stderr, flush=True)
    os._exit(STALLED_STATUS)


@contextmanager
def watched(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have a loop watched inside."""
    watchdog = LoopWatchdog(loop)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
