"""Decide what delays a desktop that does not answer: its own programs, or an overloaded machine."""

import enum
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dart_gym.desktops.sandbox.guest import descendants

OVERLOAD = 4.0
"""Threads of others that want a core, by the core, from which on a machine may be what is slow."""

MAJORITY = 2.0
"""Threads of a desktop that want a core, by those of all others, from which on it is the desktop that is too busy."""

_ESSENTIAL = frozenset({"Xvfb", "openbox", "dbus-daemon", "desktop-guest"})
_SAMPLES, _APART_S = 5, 0.02
_NICE, _POLICY = 16, 38  # places in /proc/<pid>/stat, from the state on


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A thread of a desktop: its name, and its state as `/proc` has it (R, S, D, T, ...).

    `yields` says that it leaves the cores to others: it has made itself nicer, or runs when nobody else wants to.
    """

    name: str
    state: str
    yields: bool = False


class Busy(NamedTuple):
    """Threads of the machine that run or want a core, and those that wait for a disk."""

    running: float
    blocked: float


class Delay(enum.IntEnum):
    """What delays a desktop."""

    MACHINE = 0
    """Others want most of the cores, and it wants one, too."""
    WANTS_NOTHING = 1
    """Others want most of the cores, and it wants none: at this moment no machine could be faster."""
    ITSELF = 2


def held_up_inside(keeper: int) -> bool:
    """Return whether it is the programs of a keeper's desktop that hold it up, by what their threads do now."""
    return what_delays({keeper}) is not Delay.MACHINE


def what_delays(roots: set[int], *, overloaded: bool = False) -> Delay:
    """Return what the processes, and all below them, wait for now.

    `overloaded` says that the machine was too busy before, so that it counts alone what the processes do. Takes a tenth
    of a second. What waits for a core at this moment is counted, and not the load average: a desktop
    would raise that for the minute that follows, and look like the victim of a busy machine. The median of some moments
    is taken, for one alone may be any.
    """
    cores, found = len(os.sched_getaffinity(0)), []
    for sample in range(_SAMPLES):
        if sample:
            time.sleep(_APART_S)  # between samples, not a wait for anything
        threads = [state for root in roots for state in _threads(root)]
        busy = busy_share(Path("/proc/stat").read_text())
        busy = Busy(math.inf, busy.blocked) if overloaded else busy
        found.append(delay_of(threads, busy, cores))
    return Delay(statistics.median_low(found))


def delay_of(threads: list[ProcessState], busy: Busy, cores: int) -> Delay:
    """Return what delays a desktop with these threads. Pure.

    It holds itself up where what it needs is stopped, where nobody else is busy, and where its own threads are by far
    the most. A thread that yields wants no core, and one that waits in the kernel (D) wants a disk only where others
    wait for one, too: a parent of `vfork` waits like this for its child, as long as that likes.
    """
    if any(thread.name in _ESSENTIAL and thread.state in "Tt" for thread in threads):
        return Delay.ITSELF
    running = sum(thread.state == "R" for thread in threads)
    blocked = sum(thread.state == "D" for thread in threads)
    others_blocked = max(0.0, busy.blocked - blocked)
    others = max(0.0, busy.running - running) + others_blocked
    if others < OVERLOAD * cores or running + blocked > MAJORITY * others:
        return Delay.ITSELF
    wants_core = any(thread.state == "R" and not thread.yields for thread in threads)
    return Delay.MACHINE if wants_core or (blocked and others_blocked) else Delay.WANTS_NOTHING


def busy_share(stat: str) -> Busy:
    """Return how busy a machine is, from `/proc/stat`. Pure."""
    values = dict(line.split(" ", 1) for line in stat.splitlines() if line.startswith("procs_"))
    return Busy(float(values.get("procs_running", 0)), float(values.get("procs_blocked", 0)))


def _fields(path: Path) -> tuple[str, list[str]]:
    """Name of a thread, and what `stat` says about it from its state on."""
    name, _, rest = path.read_text(errors="replace").partition("(")[2].rpartition(")")
    return name, rest.split()


def _threads(root: int) -> Iterator[ProcessState]:
    """Return the threads of all processes below one; those that are nicer than that one yield."""
    try:
        usual = int(_fields(Path(f"/proc/{root}/stat"))[1][_NICE])
    except OSError:
        return  # it has ended
    for pid in descendants(root):
        for path in Path(f"/proc/{pid}/task").glob("*/stat"):
            try:
                name, fields = _fields(path)
            except OSError:
                continue  # it has ended
            yield ProcessState(name, fields[0], int(fields[_NICE]) > usual or int(fields[_POLICY]) == os.SCHED_IDLE)
