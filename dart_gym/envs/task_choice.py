"""Which task an episode of an environment gets.

Invariants:
    - All tasks of one environment have one screen size, known before any desktop boots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dart_gym.core.errors import ConfigurationError, UnknownTaskError
from dart_gym.sessions.reset_request import DEFAULT_TASK, resolve_task
from dart_gym.tasks.catalog import registry

OSWORLD_SCREEN = (1920, 1080)
NO_TASKS = "let DART_GYM_OSWORLD name OSWorld's evaluation_examples, or give the reset option task_id or task"


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """The tasks of an environment.

    Attributes:
        task_ids: ids from which an episode's task is drawn when a reset names none.
        height: rows of every screen, in pixels.
        width: columns of every screen, in pixels.
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
            rng: random generator that draws.
            options: options of the reset: at most one of `task_id`, `task` and `suite`.

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
        resolved = resolve_task(task, self.override)
        spec = resolved.desktop
        if (spec.height, spec.width) != (self.height, self.width):
            raise ValueError(
                f"task {resolved.id} has a screen of {spec.width}x{spec.height}, this environment one of "
                f"{self.width}x{self.height}: make another environment, or give it width and height"
            )
        return task if isinstance(task, dict) or not task.endswith(".json") else resolved.raw
