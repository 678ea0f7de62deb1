"""What a reset asks for: one object from an environment to the session that plays, and how it waits for the screen.

Invariants:
    - Scores of one policy differ with the pacing, so it is recorded in every info.
    - Values that cannot be meant are refused when a request is made, on the side of the client.
    - The task is looked up once, on the side that plays (`resolve`). A task's file is read on the side that asks.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_gym.core.arguments import flag, integer, number, seed_of
from dart_gym.core.errors import ConfigurationError, ProtocolError
from dart_gym.desktops.base.desktop import Desktop, SettlePolicy, SettleResult
from dart_gym.desktops.osworld_vm.machine_address import check_url
from dart_gym.tasks.catalog.registry import get_task, task_from_file
from dart_gym.tasks.catalog.task import Task

DEFAULT_TASK = "miniwob/click-test"
MAX_SEED = 2**31 - 1
SIDES = (16, 16384)
"""Bounds of a screen's width and height in pixels."""
_OVERRIDES = ("width", "height", "osworld_url")


@dataclass(frozen=True, slots=True)
class Pacing:
    """A way of waiting.

    Attributes:
        after_reset_s: a fixed pause after the set-up; None: until the screen stands still.
        after_action_s: a fixed pause after an action; None: until the screen stands still.
    """

    name: str
    after_reset_s: float | None = None
    after_action_s: float | None = None

    async def wait(self, desktop: Desktop, policy: SettlePolicy, pause_s: float | None) -> SettleResult:
        """Wait once; `pause_s` is one of the pauses above."""
        if pause_s is None:
            return await desktop.settle(policy)
        await asyncio.sleep(pause_s)  # the user asked for OSWorld's fixed pauses, to compare scores
        looked = await desktop.settle(_LOOK)
        return dataclasses.replace(looked, waited_s=pause_s + looked.waited_s)


_LOOK = SettlePolicy(quiet_ms=20.0, max_ms=60.0)  # whether the screen stands still, not a wait for it
SETTLE = Pacing("settle")
OSWORLD = Pacing("osworld", after_reset_s=60.0, after_action_s=2.0)
STEP_PAUSE = Pacing("step-pause", after_action_s=2.0)
"""The pause of OSWorld's `step`, without the minute that its runners wait after a reset."""
PACINGS = {pacing.name: pacing for pacing in (SETTLE, OSWORLD, STEP_PAUSE)}


def pacing_named(name: str | None) -> Pacing:
    """The pacing of a name; "settle" by default. Raises `ConfigurationError`."""
    if name is None:
        return SETTLE
    if not isinstance(name, str) or name not in PACINGS:
        raise ConfigurationError(f"unknown pacing {name!r}; choose one of {', '.join(PACINGS)}")
    return PACINGS[name]


def describe(pacing: Pacing, settled: SettleResult | None) -> dict[str, Any]:
    """Return what infos say about a wait: how long it was, and whether the screen stood still in the end. Pure."""
    return {
        "pacing": pacing.name,
        "settled": True if settled is None else settled.stable,
        "settle_s": 0.0 if settled is None else settled.waited_s,
    }


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """An episode to be.

    Attributes:
        task: an id such as "miniwob/click-tab", an OSWorld JSON or the path of its file (*.json), or a task.
        seed: seed of the task's initial state, in [0, 2**63); equal seeds give equal episodes where the suite can.
        max_steps: the step limit; the task's own by default.
        time_limit_s: wall-clock limit of the episode in seconds, looked at after each step; none by default.
        desktop: "width" and "height" in pixels that replace those of the task; "osworld_url" of a machine with
            OSWorld's server that replaces its desktop.
        pacing: "settle" (wait until the screen stands still, the default) or "osworld" (its fixed pauses, 60 s after
            the set-up and 2 s after an action, which the deadline must leave room for).
        accessibility: whether observations hold the accessibility tree, which programs of the profile "osworld" tell;
            it takes seconds on a screen with many elements, and is cut off after `session.ACCESSIBILITY_S`.

    Raises:
        ConfigurationError: no such pacing.
        OptionError: a seed, step limit, time limit or flag of a wrong type or out of range.
    """

    task: str | dict[str, Any] | Task
    seed: int
    max_steps: int | None = None
    time_limit_s: float | None = None
    desktop: dict[str, Any] | None = None
    pacing: str | None = None
    accessibility: bool = False

    def __post_init__(self) -> None:
        pacing_named(self.pacing)
        checked: dict[str, Any] = {
            "seed": seed_of(self.seed),
            "accessibility": flag("accessibility", self.accessibility),
        }
        if self.max_steps is not None:
            checked["max_steps"] = integer("max_steps", self.max_steps, 1)
        if self.time_limit_s is not None:
            checked["time_limit_s"] = number("time_limit_s", self.time_limit_s, 0.0, math.inf)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, task: ResetRequest | str | dict[str, Any] | Task, fields: dict[str, Any]) -> ResetRequest:
        """A request with some fields replaced, or one for a task with the other fields by name."""
        return dataclasses.replace(task, **fields) if isinstance(task, ResetRequest) else cls(task, **fields)

    def resolve(self) -> Task:
        """The task that is asked for, on the asked desktop; see `resolve_task`."""
        return resolve_task(self.task, self.desktop)

    def with_content(self) -> ResetRequest:
        """Return the same request with a task's file read.

        Raises:
            UnknownTaskError: if the file is missing.
            TaskError: if it holds no task.
        """
        if isinstance(self.task, str) and self.task.endswith(".json"):
            return dataclasses.replace(self, task=task_from_file(Path(self.task)).raw)
        return self

    def to_wire(self) -> dict[str, Any]:
        """Plain values; for a `Task` its JSON, or its id where it has none."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        task = self.task.raw or self.task.id if isinstance(self.task, Task) else self.task
        return {**values, "task": task}

    @classmethod
    def from_wire(cls, values: dict[str, Any]) -> ResetRequest:
        """A request from what came over the wire; raises `ProtocolError` where the types are wrong."""
        match {"pacing": None, "accessibility": False, **values}:
            case {
                "task": str() | dict() as task,
                "seed": int(seed),
                "max_steps": int() | None as max_steps,
                "time_limit_s": float() | int() | None as time_limit_s,
                "desktop": dict() | None as desktop,
                "pacing": str() | None as pacing,
                "accessibility": bool(accessibility),
            }:
                return cls(task, seed, max_steps, time_limit_s, desktop, pacing, accessibility)
        raise ProtocolError(f"reset takes {', '.join(cls.__slots__[:-1])} and {cls.__slots__[-1]}")


def resolve_task(task: str | dict[str, Any] | Task, desktop: dict[str, Any] | None = None) -> Task:
    """The task that an id, a JSON or its file stands for, on a desktop with the asked values.

    Raises:
        UnknownTaskError: no such task.
        TaskError: a malformed one.
        ConfigurationError: a value of a desktop that there is not, or that is not possible.
    """
    found = task if isinstance(task, Task) else get_task(task)
    if not desktop:
        return found
    for key, value in desktop.items():
        if key not in _OVERRIDES:
            raise ConfigurationError(f"cannot override {key!r} of a desktop; possible: {', '.join(_OVERRIDES)}")
        if key == "osworld_url":
            check_url(value)
        else:
            integer(f"{key} of a desktop, in pixels,", value, *SIDES)
    changes = dict(desktop)
    if "osworld_url" in changes:
        changes |= {"kind": "osworld", "url": changes.pop("osworld_url"), "profile": "osworld"}
    return dataclasses.replace(found, desktop=dataclasses.replace(found.desktop, **changes))
