"""When programs have done what they were told: they demand no processor time, and the screen stands still.

A still screen alone does not say that an application has started: a splash screen stands still too. What a program
demands is the time that it ran and the time that it waited for a processor (`/proc/<pid>/task/<tid>/schedstat`), so a
busy machine does not make a starting program look idle. Without this file in the kernel, the screen decides.

On somebody else's machine (kind "osworld") programs that have nothing to do with the task may never rest. There the
screen decides as well, once next to nothing of it has changed for `MACHINE_STILL_S`.

Invariants:
    - The wait is bounded, and what it found is told.
    - Only reads: nothing on the desktop changes.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dart_gym.desktops.base.desktop import Desktop, SettlePolicy, SettleResult

MAX_S = 60.0
PERIOD_S = 0.3
IDLE_DEMAND = 0.25
IDLE_PERIODS = 2
MACHINE_STILL_S = 10.0
CHANGING_SHARE = 0.002  # of the pixels: more than a caret that blinks, or a clock
_SETTLE = SettlePolicy(quiet_ms=150.0, max_ms=5000.0)
_READ_ALL = """
for task in /proc/[0-9]*/task/*; do
  read -r run wait rest < $task/schedstat && echo "$task $run $wait"
done"""
_READ_OWN = """
walk() {
  local task run wait rest children child
  for task in /proc/$1/task/*; do
    read -r run wait rest < $task/schedstat && echo "$task $run $wait"
    children=
    read -r children < $task/children  # a line without an end: read tells of failure
    for child in $children; do walk $child; done
  done
}
walk $PPID"""
"""For a desktop that sees all of the machine: what the parent of its commands has started, Xvfb as well."""


async def wait_until_idle(desktop: Desktop, *, timeout: float = MAX_S) -> SettleResult:
    """Wait until programs are idle and the screen stands still; `stable` says whether both came about."""
    started = time.monotonic()
    idle = 0
    before = await _demands(desktop)
    since = started
    still = Stillness(started) if desktop.spec.kind == "osworld" else None
    rested = False
    while not rested and time.monotonic() - started < timeout:
        await asyncio.sleep(PERIOD_S)
        now, after = time.monotonic(), await _demands(desktop)
        idle = idle + 1 if demand(before, after) < IDLE_DEMAND * (now - since) else 0
        before, since = after, now
        rested = idle >= IDLE_PERIODS or (
            still is not None and still.seconds(time.monotonic(), await desktop.screenshot()) >= MACHINE_STILL_S
        )
    settled = await desktop.settle(_SETTLE)
    return SettleResult(settled.stable and rested, time.monotonic() - started, settled.frames)


class Rest:
    """For how long the programs of a desktop have demanded next to no processor time, as seen by regular questions."""

    def __init__(self, desktop: Desktop) -> None:
        self._desktop, self._before = desktop, dict[str, float]()
        self._asked = self._since = 0.0

    async def seconds(self) -> float:
        """Seconds of rest until now; 0 for the first question."""
        now = time.monotonic()
        if self._asked and now - self._asked < PERIOD_S:
            return self._asked - self._since
        after = await _demands(self._desktop)
        if not self._asked or demand(self._before, after) >= IDLE_DEMAND * (now - self._asked):
            self._since = now
        self._before, self._asked = after, now
        return now - self._since


@dataclass(slots=True)
class Stillness:
    """How long a screen has stood still, but for what blinks or ticks on it; `since` in seconds of a clock."""

    since: float
    screen: NDArray[np.uint8] | None = None

    def seconds(self, now: float, screen: NDArray[np.uint8]) -> float:
        """Take in the (H, W, 3) screen of now; the seconds since it looked otherwise."""
        if self.screen is None or (screen != self.screen).any(axis=2).mean() > CHANGING_SHARE:
            self.since, self.screen = now, screen
        return now - self.since


def demand(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Seconds of processor time that threads used or waited for between two readings. Pure.

    Threads of the first reading only have ended, and those of the second only are counted from their start; what reads
    is among the latter, but stays far below `IDLE_DEMAND`.
    """
    return sum(seconds - before.get(thread, 0.0) for thread, seconds in after.items())


def parse(text: str) -> dict[str, float]:
    """Seconds by thread from the lines "thread run wait" in nanoseconds. Pure."""
    rows = (line.split() for line in text.splitlines())
    return {thread: (int(run) + int(wait)) / 1e9 for thread, run, wait in rows}


async def _demands(desktop: Desktop) -> dict[str, float]:
    spec = desktop.spec
    script = _READ_OWN if (spec.kind, spec.sandbox) == ("xvfb", "none") else _READ_ALL
    # threads end while they are read: what cannot be read is left out
    result = await desktop.execute(["/bin/sh", "-c", f"exec 2>/dev/null; {script}"], timeout=30.0)
    return parse(result.stdout.decode())
