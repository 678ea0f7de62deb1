"""What an environment is made of: the arguments that `DesktopEnv` and `DesktopVectorEnv` share, and its tasks.

Invariants:
    - Making settings boots nothing and opens no connection; only the tasks are looked up, for the size of the screen.
    - All tasks of one environment have one screen size, known before any desktop boots.
    - Every value is plain, so that `gymnasium`'s spec of an environment goes through JSON and back.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, TypedDict

import gymnasium
import numpy as np

from dart_gym.cluster.client.cluster_place import place_of
from dart_gym.cluster.client.cluster_servers import ClientSettings, check_codec, server_urls
from dart_gym.cluster.wire.frames import MAX_DEADLINE_MS
from dart_gym.core.arguments import flag, integer, number, sequence, text
from dart_gym.core.errors import ConfigurationError, OptionError, UnknownTaskError
from dart_gym.core.suggestions import suggest
from dart_gym.envs.cluster_link import ClusterLink
from dart_gym.envs.spaces import ActionSpace, observation_space
from dart_gym.sessions.reset_request import DEFAULT_TASK, SIDES, ResetRequest, pacing_named, resolve_task
from dart_gym.tasks.catalog import registry
from dart_gym.tasks.requirements.place import Place
from dart_gym.tasks.requirements.runnable import Selection, check_runnable, select

Check = Callable[[str, Any], Any]
"""Gets the name and value of an argument; returns the value, or raises `OptionError`."""
LEAST_DEADLINE_S = 0.001
RENDER_MODES = ("rgb_array",)
OSWORLD_SCREEN = (1920, 1080)
NO_TASKS = "let DART_GYM_OSWORLD name OSWorld's evaluation_examples, or give the reset option task_id or task"


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """The tasks of an environment, in pixels of every screen; `override` has "width" and "height" given by the user."""

    task_ids: tuple[str, ...]
    height: int
    width: int
    override: dict[str, Any]
    place: Place
    skipped: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        task: str | None,
        tasks: Sequence[str] | None,
        suite: str | None,
        width: int | None,
        height: int | None,
        osworld_url: str | None = None,
        url: str | None = None,
        token: str | None = None,
    ) -> TaskChoice:
        """From the arguments of an environment: at most one of task, tasks, suite.

        Of a suite the tasks that can run are taken; the others are `skipped`. The suite "osworld" may be empty:
        each reset must name a task then.

        Raises:
            UnknownTaskError: no such task or suite.
            UnrunnableTaskError: a task that is named, or all of the suite, cannot run there.
            ConfigurationError: more than one of them, or an empty list.
            ValueError: tasks with screens of different sizes.
        """
        given = [name for name, value in (("task", task), ("tasks", tasks), ("suite", suite)) if value is not None]
        if len(given) > 1:
            raise ConfigurationError(f"give one of task, tasks and suite, not {' and '.join(given)}")
        place = place_of(url, token, osworld_url)
        selection = select(suite, place) if suite is not None else Selection(())
        if suite is not None:
            task_ids: Sequence[str | None] = selection.runnable
        else:
            task_ids = list(tasks) if tasks is not None else [task]
        options = {"width": width, "height": height, "osworld_url": osworld_url}
        override = {key: value for key, value in options.items() if value is not None}
        if not task_ids and suite == "osworld":
            return cls((), height or OSWORLD_SCREEN[1], width or OSWORLD_SCREEN[0], override, place)
        if not task_ids:
            raise ConfigurationError("the list of tasks is empty")
        names = [name or DEFAULT_TASK for name in task_ids]
        sizes: dict[tuple[int, int], str] = {}
        samples = [] if suite is None else [name for name in registry.samples(suite) if name not in selection.skipped]
        resolved = {name: resolve_task(name, override) for name in samples or names}
        if suite is None:
            check_runnable(resolved.values(), place)
        for name, spec in ((name, task.desktop) for name, task in resolved.items()):
            sizes.setdefault((spec.height, spec.width), name)
        if len(sizes) > 1:
            found = ", ".join(f"{name} is {width}x{height}" for (height, width), name in sizes.items())
            raise ValueError(f"tasks of one environment need screens of one size: {found}; give width and height")
        (height, width), _ = sizes.popitem()
        return cls(tuple(names), height, width, override, place, selection.skipped)

    def draw(self, rng: np.random.Generator) -> str:
        """Return a task for the next episode.

        Raises:
            UnknownTaskError: if there is no task to choose.
        """
        if not self.task_ids:
            raise UnknownTaskError(f"there is no task to draw; {NO_TASKS}")
        return self.task_ids[int(rng.integers(len(self.task_ids)))] if len(self.task_ids) > 1 else self.task_ids[0]

    def choose(self, rng: np.random.Generator, options: dict[str, Any]) -> str | dict[str, Any]:
        """The task that a reset's options name, or one drawn. Raises `ValueError`, `UnknownTaskError`, `TaskError`."""
        if len(options) > 1:
            raise OptionError(f"give one of the reset options task_id, task and suite, not {' and '.join(options)}")
        if "suite" in options:
            names = select(options["suite"], self.place).runnable
            if not names:
                raise UnknownTaskError(f"the suite {options['suite']!r} has no tasks; {NO_TASKS}")
            return self.check(names[int(rng.integers(len(names)))])
        asked = options.get("task_id", options.get("task"))
        return self.draw(rng) if asked is None else self.check(asked)

    def check(self, task: str | dict[str, Any]) -> str | dict[str, Any]:
        """Check that a task exists and fits the screen, and return it.

        Raises:
            ValueError: if it does not fit.
            UnknownTaskError: if there is no such task.
            TaskError: if the task is malformed.
        """
        resolved = resolve_task(task, self.override)
        check_runnable([resolved], self.place)
        spec = resolved.desktop
        if (spec.height, spec.width) != (self.height, self.width):
            raise ValueError(
                f"task {resolved.id} has a screen of {spec.width}x{spec.height}, this environment one of "
                f"{self.width}x{self.height}: make another environment, or give it width and height"
            )
        return task if isinstance(task, dict) or not task.endswith(".json") else resolved.raw


class EnvOptions(TypedDict, total=False):
    """The keywords of `gymnasium.make` and `make_vec`, for editors and type checkers; see `EnvSettings`."""

    tasks: Sequence[str] | None
    suite: str | None
    url: str | None
    token_env: str | None
    osworld_url: str | None
    codec: str | None
    width: int | None
    height: int | None
    render_mode: str | None
    max_steps: int | None
    time_limit_s: float | None
    pacing: str
    accessibility: bool
    shaped_reward: bool
    deadline_s: float


@dataclass(frozen=True, slots=True)
class EnvSettings:
    """The settings of one environment, or of each of a vector.

    Attributes:
        task: the task of every episode; "miniwob/click-test" by default.
        tasks: several, of which each reset draws one.
        suite: name of a suite, of whose tasks each reset draws one.
        url: a cluster's address (`ws+unix:///path.sock`, `ws://host:port`), or several, separated by commas; without
            one a private cluster is started.
        token_env: name of the environment variable that holds the cluster's token.
        osworld_url: a machine that runs OSWorld's server (`http://host:5000`), to use instead of a local desktop;
            for a vector as many as environments, separated by commas.
        codec: image codec of the screenshots: "raw" or "png", or one of those that lose a little; by
            default "raw" where the cluster runs on this machine, "png" elsewhere.
        width: columns of the screen in pixels, instead of the task's.
        height: rows of the screen in pixels, instead of the task's.
        render_mode: "rgb_array" or None.
        max_steps: the step limit, instead of the task's; an episode that reaches it is evaluated. Where it is not
            given, `max_episode_steps` of `gymnasium.make` and `make_vec` is.
        time_limit_s: wall-clock limit of an episode.
        pacing: "settle" (wait until the screen stands still) or "osworld" (its fixed pauses, for comparable scores).
        accessibility: whether observations hold `accessibility_tree` (OSWorld's XML), which programs of the profile
            "osworld" tell.
        shaped_reward: whether each step is rewarded for its progress (`dart_gym.envs.episode_info.reward_of`).
        deadline_s: seconds that one operation may take; what takes longer is a fault of the environment.
    """

    task: str | None = None
    tasks: tuple[str, ...] | None = None
    suite: str | None = None
    url: str | None = None
    token_env: str | None = None
    osworld_url: str | None = None
    codec: str | None = None
    width: int | None = None
    height: int | None = None
    render_mode: str | None = None
    max_steps: int | None = None
    time_limit_s: float | None = None
    pacing: str = "settle"
    accessibility: bool = False
    shaped_reward: bool = False
    deadline_s: float = 120.0

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.render_mode is not None and self.render_mode not in RENDER_MODES:
            raise OptionError(f"render_mode must be None or one of {list(RENDER_MODES)}, got {self.render_mode!r}")
        if self.codec is not None:
            check_codec(self.codec)
        if self.url is not None:
            server_urls(self.url)
        pacing_named(self.pacing)

    @classmethod
    def make(cls, task: str | None, options: EnvOptions) -> EnvSettings:
        """Build the settings from an environment's arguments.

        Raises:
            TypeError: if an option does not exist.
            ValueError: if a value is out of range.
            ConfigurationError: if values contradict each other.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        values: dict[str, Any] = {**options}
        for name in values:
            if name not in names:
                raise TypeError(f"got an unexpected keyword argument {name!r}; {suggest(name, names)}")
        for name in ("pacing", "accessibility", "shaped_reward", "deadline_s"):
            if name in values and values[name] is None:
                del values[name]  # the default
        return cls(task=task, **values)

    def choices(self, num_envs: int = 1) -> list[TaskChoice]:
        """Return each environment's tasks, all of one screen size.

        Raises:
            ConfigurationError: if there are too few machines, and as `make`.
        """
        arguments = self.task, self.tasks, self.suite, self.width, self.height
        if self.osworld_url is None:
            return [TaskChoice.make(*arguments, None, self.url, self._token())] * num_envs
        urls = list(dict.fromkeys(part.strip() for part in self.osworld_url.split(",")))
        if len(urls) != num_envs:
            raise ConfigurationError(
                f"osworld_url must name one machine for each environment ({num_envs}), got {self.osworld_url!r}"
            )
        return [TaskChoice.make(*arguments, machine, self.url) for machine in urls]

    def _token(self) -> str | None:
        """The cluster's token; None where its variable is not set, which is an error when the cluster is used."""
        return os.environ.get(self.token_env) if self.token_env else None

    def link(self) -> ClusterLink:
        """The way to the cluster; nothing is connected yet."""
        return ClusterLink(self.url, self.token_env, ClientSettings(codecs=(self.codec,) if self.codec else ()))

    def observation_space(self, choice: TaskChoice) -> gymnasium.spaces.Dict:
        """Of one environment."""
        return observation_space(choice.height, choice.width, accessibility=self.accessibility)

    def action_space(self, choice: TaskChoice) -> ActionSpace:
        """Of one environment."""
        return ActionSpace(choice.height, choice.width)

    def request(
        self,
        choice: TaskChoice,
        task: str | dict[str, Any],
        seed: int,
        pacing: str | None = None,
        time_limit_steps: int | None = None,
    ) -> ResetRequest:
        """Return what a reset asks a session for; `time_limit_steps` is the limit of a wrapper, if that is smaller."""
        limits = [limit for limit in (self.max_steps, time_limit_steps) if limit is not None]
        return ResetRequest(
            task,
            seed,
            max_steps=min(limits, default=None),
            time_limit_s=self.time_limit_s,
            desktop=choice.override or None,
            pacing=pacing or self.pacing,
            accessibility=self.accessibility,
        )


def osworld_options(task: str | None, options: EnvOptions) -> EnvOptions:
    """The options of an environment of OSWorld's tasks: all of the suite "osworld" where nothing else is named."""
    if task is not None or options.get("tasks") is not None:
        return options
    return {"suite": "osworld", **options}


def check_options(options: Any, known: Mapping[str, Check]) -> dict[str, Any]:
    """Return a copy of the options of a reset, without those that are None.

    Raises:
        OptionError: no mapping, an unknown option, or one of a wrong type.
    """
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"options of reset must be a dict, got {options!r:.200}")
    given = {}
    for key, value in (options or {}).items():
        if key not in known:
            raise OptionError(f"unknown reset option {key!r}; {suggest(str(key), tuple(known))}")
        if value is not None:
            given[key] = known[key](f"the reset option {key!r}", value)
    return given


def check_task(name: str, value: Any) -> str | dict[str, Any]:
    """Return a task as it may be asked for: an id, the path of a JSON, or a JSON's content, which is copied."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return copy.deepcopy(dict(value))
    if isinstance(value, str) and value:
        return str(value)
    raise OptionError(f"{name} must be a task's id, a path or an OSWorld JSON, got {value!r:.200}")


def _tasks(name: str, value: Any) -> tuple[Any, ...]:
    return tuple(check_task(f"each of {name}", task) for task in sequence(name, value))


_CHECKS: dict[str, Check] = {
    "task": check_task,
    "tasks": _tasks,
    "width": lambda name, value: integer(name, value, *SIDES),
    "height": lambda name, value: integer(name, value, *SIDES),
    "max_steps": lambda name, value: integer(name, value, 1),
    "time_limit_s": lambda name, value: number(name, value, 0.0, math.inf),
    "accessibility": flag,
    "shaped_reward": flag,
    "deadline_s": lambda name, value: number(name, value, LEAST_DEADLINE_S, MAX_DEADLINE_MS / 1000),
    **dict.fromkeys(("suite", "url", "token_env", "osworld_url", "codec", "render_mode", "pacing"), text),
}
