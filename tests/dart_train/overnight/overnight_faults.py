"""Which module is hit when, and how: drawn from a seed. Pure, but for `pick_desktop_process`.

Invariants:
    - Every module is hit once before any is hit again.
    - One fault per interval, at a random moment of its middle half; none in the last interval, which belongs to the
      recovery from the one before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

import psutil

VICTIMS = ("cluster", "desktop", "rollout", "engine-r0", "engine-r1", "learn", "data", "launcher")
"""What is killed; a "desktop" is one process out of all desktops, such as an X server or a browser."""

CAN_STAND_STILL = ("cluster", "rollout", "engine-r0", "engine-r1", "learn", "data")
LONGEST_STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        at_s: seconds after the measurement's begin.
        victim: one of `VICTIMS`.
        kind: "kill" is SIGKILL; "stop" is SIGSTOP, and SIGCONT after `for_s`.
        for_s: seconds that it stands still.
    """

    at_s: float
    victim: str
    kind: Literal["kill", "stop"] = "kill"
    for_s: float = 0.0


def plan_faults(seconds: float, every_s: float, seed: int, *, stop_share: float = 0.2) -> list[Fault]:
    """Return the faults of a measurement, in order.

    Args:
        seconds: how long it takes.
        every_s: interval of the faults.
        seed: of everything that is drawn.
        stop_share: share of the faults that make a module stand still, of those that can.
    """
    source = random.Random(seed)
    faults: list[Fault] = []
    bag: list[str] = []
    for index in range(int(seconds / every_s) - 1):
        if not bag:
            bag = source.sample(VICTIMS, len(VICTIMS))
        victim = bag.pop()
        at_s = (index + source.uniform(0.25, 0.75)) * every_s
        if victim in CAN_STAND_STILL and source.random() < stop_share:
            faults.append(Fault(at_s, victim, "stop", min(LONGEST_STOP_S, every_s / 4)))
        else:
            faults.append(Fault(at_s, victim))
    return faults


def pick_desktop_process(cluster: psutil.Process, source: random.Random) -> psutil.Process | None:
    """One of the processes of all desktops; None while there are none."""
    inside = sorted(cluster.children(recursive=True), key=lambda process: process.pid)
    return source.choice(inside) if inside else None
