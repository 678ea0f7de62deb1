"""Virtual time: a heap of events, and processes as generators. Discrete-event simulation in a page.

A process yields virtual seconds to sleep, or a `Signal` to wait for. Events of one moment
happen in the order in which they were scheduled, so that a simulation is deterministic.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator
from typing import TypeAlias, Union


class Signal:
    """Wakes all waiting processes each time that it is fired."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[Process] = []

    def fire(self) -> None:
        """Wake all processes that wait now."""
        waiting, self._waiting = self._waiting, []
        for process in waiting:
            self._clock.after(0.0, lambda process=process: self._clock.resume(process))  # type: ignore[misc]

    def wait(self, process: Process) -> None:
        """Have a process woken by the next `fire`."""
        self._waiting.append(process)


Process: TypeAlias = Generator[Union[float, Signal], None, None]  # noqa: UP007  (Signal is defined above, not imported)


class Clock:
    """Virtual seconds, and what happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), action))

    def start(self, process: Process) -> None:
        """Run a process from now on."""
        self.after(0.0, lambda: self.resume(process))

    def resume(self, process: Process) -> None:
        """Run a process until it sleeps, waits or ends."""
        try:
            wish = next(process)
        except StopIteration:
            return
        if isinstance(wish, Signal):
            wish.wait(process)
        else:
            self.after(wish, lambda: self.resume(process))

    def run(self, until: float) -> None:
        """Let time pass until a moment."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = until
