"""Where tasks come from: suites by name, tasks by id, and OSWorld's JSON as it is.

Invariants:
    - A suite's module is imported, and its tasks are read, when they are first asked for; those of an imported suite
      (`task_index`) one by one.
    - A task's id is "<suite>/<name>", the suite being named as it was asked for: "miniwob/click-tab", or
      "my_package.birds:Birds/robin". Tasks given as JSON from outside belong to the suite "osworld".
    - JSON from outside cannot choose how its desktop is isolated: only what is in `_DESKTOP_KEYS`.
"""

import dataclasses
import functools
import importlib.resources
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from dart_gym.core.errors import ConfigurationError, PluginError, TaskError, UnknownNameError, UnknownTaskError
from dart_gym.core.suggestions import suggest
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.tasks.catalog.recorded_solution import SOLUTION, check_owners, read_solution
from dart_gym.tasks.catalog.scenario import Scenario
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.catalog.task_index import TaskIndex, imported_suites
from dart_gym.utils.plugins import Registry, has

PANEL_VARIABLE = "DART_GYM_OSWORLD_PANEL"
OSWORLD = "osworld"  # the suite of tasks that are given as JSON
OSWORLD_PROFILE = "osworld"  # what OSWorld's own tasks run on, those without the key "dart"
_DESKTOP_KEYS = frozenset({"kind", "width", "height", "profile", "sites", "panel"})
_IMPORTED = "dart_gym.tasks.osworld.imported_scenario"
_MAX_SCREEN = 7680
_LONGEST_NAME = 500


class Suite(Protocol):
    """A named list of tasks and what runs them: a module, an object, or a class that is called without arguments."""

    def load_tasks(self) -> Iterable[Task]:
        """All tasks. Called once in a process, when a task of the suite is first asked for."""

    def make_scenario(self) -> Scenario:
        """A fresh scenario for one desktop, on which the suite's tasks are played one after the other."""


SUITES: Registry[Suite] = Registry(
    "suite",
    "dart_gui.suites",
    {
        "miniwob": "dart_gym.tasks.suites.miniwob",
        "dialogs": "dart_gym.tasks.suites.dialogs",
        "sites": "dart_gym.tasks.suites.sites",
        "debian-basics": "dart_gym.tasks.suites.debian_basics",
        "fake": "dart_gym.tasks.suites.fake_suite",
        "drawn": "dart_gym.tasks.suites.drawn",
        "osworld": "dart_gym.tasks.osworld.osworld_scenario",
    },
    (has(load_tasks=(), make_scenario=()),),
)


def suites() -> list[str]:
    """Names of all suites, those of installed packages and imported ones included, sorted."""
    return sorted({*SUITES.names(), *imported_suites()})


def is_suite(name: str) -> bool:
    """Return whether a name is that of a suite, `module:Class` included, and not a task's or a file's.

    Of an imported suite a part is one too: "cua[split=train,app!=vlc]"; its tasks' ids are the suite's.
    """
    return name.partition("[")[0] in suites() or (":" in name and "/" not in name and not name.endswith(".json"))


def task_ids(suite: str | None = None) -> list[str]:
    """Ids of all tasks, or of one suite's, sorted. Raises `UnknownTaskError` for an unknown suite."""
    names = suites() if suite is None else [suite]
    return sorted(task_id for name in names for task_id in _ids(name))


def samples(suite: str) -> list[str]:
    """Ids of tasks among which are all sizes of screen of a suite: of an imported one few, else all."""
    index = _index(suite)
    return task_ids(suite) if index is None else index.samples()


def get_task(task: str | Path | dict[str, Any]) -> Task:
    """Return a task.

    Args:
        task: an id such as "miniwob/click-test", the path of an OSWorld JSON file, or such a JSON's content.

    Raises:
        UnknownTaskError: no such task; the message suggests near names.
        TaskError: the JSON is malformed.
    """
    if isinstance(task, dict):
        return task_from_dict(task)
    if isinstance(task, Path) or task.endswith(".json"):
        return task_from_file(Path(task))
    suite, slash, rest = task.partition("/")
    if slash and is_suite(suite):
        index = _index(suite)
        found = _tasks(suite).get(task) if index is None else _imported(index, rest)
        if found is not None:
            return found
    known = [task_id for name in (*SUITES.built_in, suite) for task_id in _tasks_if_any(name)]
    hint = suggest(task, dict.fromkeys(known), count=3, otherwise="`dart-gym tasks list` lists all tasks")
    raise UnknownTaskError(f"unknown task {task!r}; {hint}")


def make_scenario(suite: str) -> Scenario:
    """Return a fresh scenario that runs a suite's tasks on one desktop, episode after episode."""
    if _index(suite) is not None:
        scenario: Scenario = importlib.import_module(_IMPORTED).ImportedScenario()
        return scenario
    return _suite(suite).make_scenario()


def task_from_file(path: Path, suite: str = "osworld") -> Task:
    """Read an OSWorld JSON file, and its recorded solution where one lies beside it.

    Raises:
        TaskError: one of the two is malformed; the message has the reason.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownTaskError(f"cannot read task file {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise TaskError(f"{path} is not JSON: {error}") from error
    return dataclasses.replace(task_from_dict(raw, suite), solution=read_solution(path))


def read_suite(directory: Path) -> dict[Path, Task]:
    """All tasks below a directory, by file, sorted; names that begin with "_" are no tasks.

    Raises:
        UnknownTaskError: there is no task.
        TaskError: a file is no task, or a recorded solution has no task or is malformed.
    """
    examples = directory / "examples"
    below = sorted((examples if examples.is_dir() else directory).rglob("[!_]*.json"))
    found = [path for path in below if not path.name.endswith(SOLUTION)]
    if not found:
        raise UnknownTaskError(f"there are no task files (*.json) in {directory}")
    check_owners(set(below) - set(found), found)
    tasks = {}
    for path in found:
        try:
            tasks[path] = task_from_file(path)
        except UnknownTaskError:
            raise
        except TaskError as error:
            raise TaskError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    return tasks


def bundled_tasks(package: str, suite: str) -> list[Task]:
    """The tasks of a suite that are JSONs beside its module, but for those whose names begin with "_".

    `_setup.json` holds set-up steps by application, which come before a task's own: those of "all", then those of each
    that the task names in `related_apps`.
    """
    folder = importlib.resources.files(package)
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".json")}
    shared: dict[str, list[dict[str, Any]]] = json.loads(texts["_setup.json"])
    tasks = []
    for name in sorted(name for name in texts if not name.startswith("_")):
        raw = json.loads(texts[name])
        steps = [step for app in ("all", *raw["related_apps"]) for step in shared.get(app.split("_")[0], [])]
        tasks.append(task_from_dict({**raw, "config": [*steps, *raw["config"]]}, suite=suite))
    return tasks


def _check_steps(name: str, key: str, steps: Any) -> None:
    """Raise `TaskError` for what is no list of set-up steps; what a step's parameters mean is seen when it runs."""
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise TaskError(f"task {name!r}: {key!r} must be a list of objects")
    for number, step in enumerate(steps, start=1):
        parameters = step.get("parameters") or {}
        where = f"task {name!r}: step {number} of {key!r}"
        if not isinstance(parameters, dict):
            raise TaskError(f"{where}: 'parameters' must be an object, got {parameters!r:.100}")
        files = parameters.get("files") or []
        if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
            raise TaskError(f"{where}: 'files' must be a list of objects, got {files!r:.100}")


def task_from_dict(raw: dict[str, Any], suite: str = "osworld") -> Task:
    """Return the task that an OSWorld JSON stands for.

    The optional key "dart" holds what OSWorld's format lacks: `desktop` (kind, width, height, profile, sites, panel),
    `max_steps`, `parameters`, `ready` and `oracle` (see `dart_gym.tasks.osworld.osworld_scenario`).

    Raises:
        TaskError: a required key is missing or has the wrong type.
    """
    if not isinstance(raw, dict):
        raise TaskError(f"a task must be a JSON object, got {type(raw).__name__}")
    name, instruction = raw.get("id"), raw.get("instruction")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise TaskError(f"a task needs a string 'id' of 1 to {_LONGEST_NAME} characters")
    if not isinstance(instruction, str):
        raise TaskError(f"task {name!r} needs a string 'instruction'")
    config = raw.get("config") or []
    evaluator = raw.get("evaluator") or {}
    extra = raw.get("dart") or {}
    if not isinstance(evaluator, dict) or not isinstance(extra, dict):
        raise TaskError(f"task {name!r}: 'evaluator' and 'dart' must be objects")
    _check_steps(name, "config", config)
    _check_steps(name, "evaluator.postconfig", evaluator.get("postconfig") or [])
    max_steps = extra.get("max_steps", 15)
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise TaskError(f"task {name!r}: dart.max_steps must be a positive integer, got {max_steps!r}")
    if not isinstance(extra.get("deterministic", True), bool):
        raise TaskError(f"task {name!r}: dart.deterministic must be true or false, got {extra['deterministic']!r}")
    return Task(
        id=f"{suite}/{name}",
        instruction=instruction,
        desktop=_desktop_spec(name, extra.get("desktop") or {}, {"profile": "bare"} if "dart" in raw else _osworlds()),
        max_steps=max_steps,
        raw=raw,
    )


def _osworlds() -> dict[str, Any]:
    """Return what OSWorld's own tasks run on, with a panel where that is asked for; they cannot say it themselves."""
    value = os.environ.get(PANEL_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ConfigurationError(f"{PANEL_VARIABLE} must be 0 or 1, got {value!r}")
    return {"profile": OSWORLD_PROFILE, "panel": value == "1"}


def _desktop_spec(name: str, fields: Any, defaults: dict[str, Any]) -> DesktopSpec:
    if not isinstance(fields, dict) or not fields.keys() <= _DESKTOP_KEYS:
        raise TaskError(f"task {name!r}: dart.desktop may hold {', '.join(sorted(_DESKTOP_KEYS))}, got {fields!r}")
    for key, value in fields.items():
        if key in ("width", "height"):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_SCREEN:
                raise TaskError(f"task {name!r}: dart.desktop.{key} must be in [1, {_MAX_SCREEN}], got {value!r}")
        elif key == "panel":
            if not isinstance(value, bool):
                raise TaskError(f"task {name!r}: dart.desktop.panel must be true or false, got {value!r}")
        elif key == "sites":
            if not isinstance(value, list) or not all(isinstance(site, str) for site in value):
                raise TaskError(f"task {name!r}: dart.desktop.sites must be a list of names, got {value!r}")
        elif not isinstance(value, str):
            raise TaskError(f"task {name!r}: dart.desktop.{key} must be a string, got {value!r}")
        elif key == "kind" and value == "osworld":
            raise TaskError(f"task {name!r}: a task cannot name a machine: give the option osworld_url instead")
        elif key == "kind" and ":" in value:
            raise TaskError(f"task {name!r}: a task's JSON cannot name a class: use the name of an installed one")
    return DesktopSpec(**{**defaults, **fields, "sites": tuple(fields.get("sites", ()))})


def forget_suites() -> None:
    """Read suites and their tasks again when they are next asked for: their files or packages have changed."""
    for cached in (_suite, _tasks):
        cached.cache_clear()


@functools.cache
def _suite(name: str) -> Suite:
    try:
        found = SUITES.get(name)
    except UnknownNameError as error:
        raise UnknownTaskError(str(error)) from error
    if "/" in name:
        raise PluginError(f"the entry point {name!r} of a suite needs a name without a slash: task ids are suite/name")
    return found() if isinstance(found, type) else found


@functools.cache
def _tasks(name: str) -> dict[str, Task]:
    """Tasks by their ids, which begin with the name under which the suite was asked for."""
    tasks = {}
    for task in _suite(name).load_tasks():
        task_id = f"{name}/{task.id.partition('/')[2] or task.id}"
        tasks[task_id] = task if task.id == task_id else dataclasses.replace(task, id=task_id)
    return tasks


def _ids(suite: str) -> Iterable[str]:
    index = _index(suite)
    return _tasks(suite) if index is None else index.ids(suite.partition("[")[2].removesuffix("]"))


def _index(suite: str) -> TaskIndex | None:
    """The index of an imported suite; None for others, whose names go first."""
    name = suite.partition("[")[0]
    return TaskIndex(name) if name in imported_suites() and name not in SUITES.names() else None


def _imported(index: TaskIndex, name: str) -> Task | None:
    for raw, kind in index.rows("SELECT raw, kind FROM tasks WHERE name = ?", (name,)):
        values = json.loads(raw)
        return get_task(values["task"]) if kind == "suite" else task_from_dict(values, index.suite)
    return None


def _tasks_if_any(name: str) -> Iterable[str]:
    """Ids for a suggestion, for which a plug-in that cannot be used is no reason to fail."""
    try:
        return _ids(name)
    except (PluginError, TaskError):
        return ()
