"""Who holds a desktop up that does not answer: its own programs, or a machine that has too much to do."""

import os
from dataclasses import dataclass
from pathlib import Path

from dart_gym.desktops.sandbox.guest import descendants

OVERLOAD = 4.0
"""Processes of others that want a core, by the core, from which on a machine may be what is slow."""

_ESSENTIAL = frozenset({"Xvfb", "openbox", "dbus-daemon"})


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process: its name, and its state as `/proc` has it (R, S, D, T, ...)."""

    name: str
    state: str


def held_up_inside(keeper: int) -> bool:
    """Whether it is the programs of a keeper's desktop that hold it up, by what their processes do now."""
    found = [state for pid in descendants(keeper) if (state := _state(pid)) is not None]
    return is_own_doing(found, os.getloadavg()[0], len(os.sched_getaffinity(0)))


def is_own_doing(processes: list[ProcessState], load: float, cores: int) -> bool:
    """Whether a desktop holds itself up: what it needs is stopped, or nobody else keeps the machine busy. Pure."""
    if any(process.name in _ESSENTIAL and process.state in "Tt" for process in processes):
        return True
    own = sum(process.state in "RD" for process in processes)
    return load - own < OVERLOAD * cores


def _state(pid: int) -> ProcessState | None:
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").partition("(")[2].rpartition(")")
    except OSError:
        return None  # it has ended
    return ProcessState(name, rest.split()[0])
