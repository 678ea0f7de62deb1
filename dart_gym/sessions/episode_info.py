"""What the Gymnasium environments share: which task an episode gets, and how a step's result looks to Gymnasium.

Invariants:
    - All tasks of one environment have one screen size, known before any desktop boots.
    - Every info has the same keys with values of the same types (text "", number nan where there is nothing).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_gym.core.errors import ConfigurationError, UnknownTaskError
from dart_gym.core.outcomes import StepResult, TerminalState
from dart_gym.core.suggestions import suggest
from dart_gym.sessions.session import resolve_task
from dart_gym.tasks.catalog import registry
from dart_gym.tasks.catalog.task import Task

OSWORLD_SCREEN = (1920, 1080)
NO_TASKS = "let DART_GYM_OSWORLD name OSWorld's evaluation_examples, or give the reset option task_id or task"
DEFAULT_TASK = "miniwob/click-test"
TIMINGS = ("queue", "boot", "prepare", "perform", "settle", "watch", "capture", "accessibility", "evaluate", "total")
MAX_SEED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """The tasks of an environment.

    Attributes:
        task_ids: from which an episode's task is drawn when a reset names none.
        height: of every screen, in pixels.
        width: likewise.
        override: "width" and "height" given by the user, which replace those of the tasks.
    """

    task_ids: tuple[str, ...]
    height: int
    width: int
    override: dict[str, Any]

    @classmethod
    def make(
        cls,
        task: str | None,
        tasks: Sequence[str] | None,
        suite: str | None,
        width: int | None,
        height: int | None,
        osworld_url: str | None = None,
    ) -> TaskChoice:
        """From the arguments of an environment: at most one of task, tasks, suite.

        The suite "osworld" may be empty: each reset must name a task then.

        Raises:
            UnknownTaskError: no such task or suite.
            ConfigurationError: more than one of them, or an empty list.
            ValueError: tasks with screens of different sizes.
        """
        given = [name for name, value in (("task", task), ("tasks", tasks), ("suite", suite)) if value is not None]
        if len(given) > 1:
            raise ConfigurationError(f"give one of task, tasks and suite, not {' and '.join(given)}")
        task_ids = registry.task_ids(suite) if suite is not None else list(tasks) if tasks is not None else [task]
        options = {"width": width, "height": height, "osworld_url": osworld_url}
        override = {key: value for key, value in options.items() if value is not None}
        if not task_ids and suite == "osworld":
            return cls((), height or OSWORLD_SCREEN[1], width or OSWORLD_SCREEN[0], override)
        if not task_ids:
            raise ConfigurationError("the list of tasks is empty")
        names = [name or DEFAULT_TASK for name in task_ids]
        sizes: dict[tuple[int, int], str] = {}
        for name in names:
            spec = resolve_task(name, override).desktop
            sizes.setdefault((spec.height, spec.width), name)
        if len(sizes) > 1:
            found = ", ".join(f"{name} is {width}x{height}" for (height, width), name in sizes.items())
            raise ValueError(f"tasks of one environment need screens of one size: {found}; give width and height")
        (height, width), _ = sizes.popitem()
        return cls(tuple(names), height, width, override)

    def draw(self, rng: np.random.Generator) -> str:
        """A task for the next episode. Raises `UnknownTaskError` where there is none."""
        if not self.task_ids:
            raise UnknownTaskError(f"there is no task to draw; {NO_TASKS}")
        return self.task_ids[int(rng.integers(len(self.task_ids)))] if len(self.task_ids) > 1 else self.task_ids[0]

    def choose(self, rng: np.random.Generator, options: dict[str, Any]) -> str | dict[str, Any]:
        """The task that the options of a reset ask for, or one drawn.

        Args:
            rng: draws.
            options: at most one of `task_id`, `task` and `suite`.

        Raises:
            ValueError: more than one of them, or a task with a screen of another size.
            UnknownTaskError, TaskError: no such task or suite, or a malformed task.
        """
        if len(options) > 1:
            raise ValueError(f"give one of the reset options task_id, task and suite, not {' and '.join(options)}")
        if "suite" in options:
            names = registry.task_ids(options["suite"])
            if not names:
                raise UnknownTaskError(f"the suite {options['suite']!r} has no tasks; {NO_TASKS}")
            return self.check(names[int(rng.integers(len(names)))])
        asked = options.get("task_id", options.get("task"))
        return self.draw(rng) if asked is None else self.check(asked)

    def check(self, task: str | dict[str, Any]) -> str | dict[str, Any]:
        """Return a task that was asked for by name or as a JSON, if it fits the environment.

        Raises:
            ValueError: its screen has another size.
            UnknownTaskError, TaskError: no such task, or a malformed one.
        """
        resolved: Task = resolve_task(task, self.override)
        spec = resolved.desktop
        if (spec.height, spec.width) != (self.height, self.width):
            raise ValueError(
                f"task {resolved.id} has a screen of {spec.width}x{spec.height}, this environment one of "
                f"{self.width}x{self.height}: make another environment, or give it width and height"
            )
        return task if isinstance(task, dict) or not task.endswith(".json") else resolved.raw


def check_options(options: dict[str, Any] | None, known: Iterable[str]) -> dict[str, Any]:
    """A copy of the options of a reset; raises `ValueError` for an unknown one, with near names."""
    names = tuple(known)
    for key in options or {}:
        if key not in names:
            raise ValueError(f"unknown reset option {key!r}; {suggest(key, names)}")
    return dict(options or {})


def make_observation(result: StepResult, *, accessibility: bool = False) -> dict[str, Any]:
    """A result's observation as the member of the observation space."""
    observation = result.observation
    tree = {"accessibility_tree": observation.accessibility_tree or ""} if accessibility else {}
    return {
        "screenshot": observation.screenshot,
        "instruction": observation.instruction,
        "action_error": observation.action_error,
        **tree,
    }


def make_info(result: StepResult) -> dict[str, Any]:
    """A result's info."""
    evaluation, timings = result.evaluation, result.timings
    score = evaluation.score if evaluation else None
    return {
        "task_id": str(result.info.get("task_id", "")),
        "task_hash": str(result.info.get("task_hash", "")),
        "seed": int(result.info.get("seed", 0)),  # type: ignore[call-overload]  # an integer on every path
        "pacing": str(result.info.get("pacing", "")),
        "settled": bool(result.info.get("settled", True)),
        "osworld_api": json.dumps(api) if (api := result.info.get("osworld_api")) else "",
        "settle_s": float(result.info.get("settle_s", 0.0)),  # type: ignore[arg-type]  # a number on every path
        "step_index": result.step_index,
        "terminal": str(result.terminal or ""),
        "score": float("nan") if score is None else float(score),
        "evaluation_status": str(evaluation.status) if evaluation else "",
        "evaluation_detail": evaluation.detail if evaluation else "",
        "action_error": result.observation.action_error,
        "env_fault": result.terminal is TerminalState.ENV_ERROR,
        **{f"timing/{phase}": float(timings.get(phase, 0.0)) for phase in TIMINGS},
    }


def stack_infos(infos: Mapping[int, dict[str, Any]], num_envs: int) -> dict[str, Any]:
    """Infos of some environments by number, as Gymnasium's vector environments give them: arrays, and masks "_key".

    All infos have the same keys and types (`make_info`), so that no array's type hangs on who comes first.
    """
    if not infos:
        return {}
    ids = np.fromiter(infos, np.intp, len(infos))
    present = np.zeros(num_envs, np.bool_)
    present[ids] = True
    stacked: dict[str, Any] = {}
    for key, value in next(iter(infos.values())).items():
        plain = type(value) in (bool, int, float)
        column: NDArray[Any] = np.zeros(num_envs, type(value)) if plain else np.full(num_envs, None, object)
        for i, info in infos.items():
            column[i] = info[key]
        stacked[key], stacked[f"_{key}"] = column, present.copy()
    return stacked


def ending(result: StepResult) -> tuple[bool, bool]:
    """(terminated, truncated) of a result."""
    if result.terminal is None:
        return False, False
    return not result.terminal.truncated, result.terminal.truncated
