"""Attempts at a task: nothing done, chance, the oracle, a golden patch; how each went and what it left behind.

Invariants:
    - Whatever goes wrong with a task is part of its record; what a machine lacks for any desktop is raised.
    - All attempts of a unit have one task and one seed: their first screens are to be equal.
    - What is left is looked for when the desktop is closed: its keeper, its programs, its directory.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dart_gym.core.actions import Done
from dart_gym.core.errors import MissingDependencyError, MissingProgramError, NoOracleError
from dart_gym.core.outcomes import EvaluationStatus, StepResult
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.sandbox.runtime_directory import processes_of, runtime_dir
from dart_gym.envs.spaces import ActionSpace
from dart_gym.sessions.session import Session
from dart_gym.sessions.slot import Slot
from dart_gym.tasks.catalog.task import Task
from dart_gym.utils.png import encode_png
from dart_gym.utils.processes import private_memory, start_time

NOTHING, RANDOM, ORACLE, GOLDEN = KINDS = ("nothing", "random", "oracle", "golden")
NO_ORACLE = "no solution is known"
SCREEN_SHARE = 0.002
"""Share of pixels in which equal first screens may differ: more than a caret that blinks, or a clock."""
RANDOM_STEPS = 10


@dataclass(frozen=True, slots=True)
class Attempt:
    """One episode. Without a score, `score` is None and `fault` says why."""

    kind: str
    score: float | None = None
    fault: str = ""
    steps: int = 0
    setup_s: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Unit:
    """All attempts at a task with one seed.

    Attributes:
        screen_share: the largest share of pixels in which two of the first screens differ.
        left: processes and directories that were there after the desktop was closed.
        memory_mb: memory of this process afterwards, which does not grow with the episodes.
    """

    task: str
    hash: str
    seed: int
    attempts: list[Attempt] = field(default_factory=list)
    screen_share: float = 0.0
    left: list[str] = field(default_factory=list)
    memory_mb: float = 0.0


async def play_unit(task: Task, seed: int, deadline_s: float, pictures: Path) -> Unit:
    """Make all attempts on one slot; first screens that differ too much are written to `pictures`.

    Raises:
        MissingDependencyError: if this machine cannot start the desktops that the task needs.
    """

    def make(spec: DesktopSpec) -> Desktop:
        made.append(make_desktop(spec))
        return made[-1]

    made: list[Desktop] = []
    keepers: dict[int, int | None] = {}
    places: set[Path] = set()
    slot = Slot("certify", make)
    attempts = list[Attempt]()
    screens = list[NDArray[np.uint8]]()
    try:
        for kind in KINDS if (task.raw.get("dart") or {}).get("golden") else KINDS[:-1]:
            attempt, screen = await _attempt(Session(slot), task, seed, kind, deadline_s)
            attempts.append(attempt)
            for pid in {pid for desktop in made if (pid := getattr(desktop, "keeper_pid", None))} - keepers.keys():
                keepers[pid] = start_time(pid)
                places |= set(runtime_dir().glob(f"{os.getpid()}-{pid}-*"))
            if screen is None:
                break  # what cannot be set up once is no task; a set-up that hangs would do so each time
            screens.append(screen)
    finally:
        await slot.close()
    share, *apart = max(
        ((float(np.mean(np.any(a != b, axis=-1))), a, b) for a, b in itertools.combinations(screens, 2)),
        key=lambda pair: pair[0],
        default=(0.0,),
    )
    for number, screen in enumerate(apart if share > SCREEN_SHARE else ()):
        pictures.mkdir(parents=True, exist_ok=True)
        (pictures / f"{task.id.replace('/', '-')}-{seed}-{'ab'[number]}.png").write_bytes(encode_png(screen))
    pids = {pid for pid, started in keepers.items() if started is not None and start_time(pid) == started}
    pids |= set(await asyncio.to_thread(processes_of, places) if places else ())
    left = [f"directory {path.name}" for path in places if path.exists()] + [f"process {pid}" for pid in sorted(pids)]
    return Unit(task.id, task.hash, seed, attempts, share, left, private_memory([os.getpid()]) / 2**20)


async def _attempt(
    session: Session, task: Task, seed: int, kind: str, deadline_s: float
) -> tuple[Attempt, NDArray[np.uint8] | None]:
    """Return an attempt, and its first screen or None."""
    started = time.monotonic()
    setup_s = None
    screen = None
    fault = ""
    score = None
    steps = 0
    try:
        result = await session.reset(task, seed=seed, deadline_s=deadline_s)
        if result.terminal is None:
            setup_s, screen = time.monotonic() - started, result.observation.screenshot
            result = await _play(session, result, kind, seed, deadline_s)
        steps, found = result.step_index, result.evaluation
        if found is not None and found.status is EvaluationStatus.OK:
            score = found.score
        elif found is not None:
            fault = f"{found.status}: {found.detail}"
    except NoOracleError:
        fault = NO_ORACLE
    except Exception as error:  # a suite's own code may raise anything: that is this task's fault, by name
        if isinstance(error, MissingDependencyError) and not isinstance(error, MissingProgramError):
            raise
        fault = f"{type(error).__name__}: {error}"
    await session.close()
    return Attempt(kind, score, fault, steps, setup_s, time.monotonic() - started), screen


async def _play(session: Session, result: StepResult, kind: str, seed: int, deadline_s: float) -> StepResult:
    """Play an episode that has begun to its end."""
    height, width, _ = result.observation.screenshot.shape
    space = ActionSpace(height, width, seed)
    if kind == GOLDEN:
        await session.golden(deadline_s=deadline_s)
    while result.terminal is None:
        if kind == ORACLE:
            result = await session.step(await session.oracle(deadline_s=deadline_s), deadline_s=deadline_s)
            if result.observation.action_error:
                raise ValueError(f"action {result.step_index} of the solution: {result.observation.action_error}")
        else:
            chance = kind == RANDOM and result.step_index < RANDOM_STEPS
            result = await session.step(space.sample() if chance else Done(), deadline_s=deadline_s)
    return result
