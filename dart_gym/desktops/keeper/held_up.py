"""Decide what delays a desktop that does not answer: its own programs, or an overloaded machine."""

import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dart_gym.desktops.sandbox.guest import descendants

OVERLOAD = 4.0
"""Threads of others that want a core, by the core, from which on a machine may be what is slow."""

MAJORITY = 2.0
"""Threads of a desktop that want a core, by those of all others, from which on it is the desktop that is too busy."""

_ESSENTIAL = frozenset({"Xvfb", "openbox", "dbus-daemon", "desktop-guest"})
_SAMPLES, _APART_S = 5, 0.02


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A thread of a desktop: its name, and its state as `/proc` has it (R, S, D, T, ...)."""

    name: str
    state: str


def held_up_inside(keeper: int) -> bool:
    """Return whether it is the programs of a keeper's desktop that hold it up, by what their threads do now."""
    return held_up_by({keeper})


def held_up_by(roots: set[int], *, overloaded: bool = False) -> bool:
    """Return whether what waits for processes, and all below them, waits for what they do and not for the machine.

    `overloaded` says that the machine was too busy before, so that it counts alone what the processes do. Takes a tenth
    of a second. What waits for a core at this moment is counted, and not the load average: a desktop
    would raise that for the minute that follows, and look like the victim of a busy machine. The median of some moments
    is taken, for one alone may be any.
    """
    cores, found = len(os.sched_getaffinity(0)), []
    for sample in range(_SAMPLES):
        if sample:
            time.sleep(_APART_S)  # between samples, not a wait for anything
        states = [state for root in roots for pid in descendants(root) for state in _states(pid)]
        busy = math.inf if overloaded else busy_share(Path("/proc/stat").read_text())
        found.append(is_own_doing(states, busy, cores))
    return bool(statistics.median_low(found))


def is_own_doing(threads: list[ProcessState], busy: float, cores: int) -> bool:
    """Return whether a desktop holds itself up. Pure.

    It does where what it needs is stopped, where none of its threads wants a core or waits for a disk, for then no
    machine could be faster, where nobody else is busy, and where its own threads are by far the most that want a core.
    """
    if any(thread.name in _ESSENTIAL and thread.state in "Tt" for thread in threads):
        return True
    own = sum(thread.state in "RD" for thread in threads)
    return own == 0 or busy - own < OVERLOAD * cores or own > MAJORITY * (busy - own)


def busy_share(stat: str) -> float:
    """Return the number of threads of the machine that run, or wait for a core or a disk, from `/proc/stat`. Pure."""
    values = dict(line.split(" ", 1) for line in stat.splitlines() if line.startswith("procs_"))
    return float(values.get("procs_running", 0)) + float(values.get("procs_blocked", 0))


def _states(pid: int) -> Iterator[ProcessState]:
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            name, _, rest = path.read_text(errors="replace").partition("(")[2].rpartition(")")
        except OSError:
            continue  # it has ended
        yield ProcessState(name, rest.split()[0])
