"""Where tasks come from: suites by name, tasks by id, and OSWorld's JSON as it is.

Invariants:
    - A suite's module is imported, and its tasks are read, when they are first asked for.
    - A task's id is "<suite>/<name>"; tasks given as JSON from outside belong to the suite "osworld".
    - JSON from outside cannot choose how its desktop is isolated: only what is in `_DESKTOP_KEYS`.
"""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_gym.core.errors import TaskError, UnknownTaskError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.tasks.catalog.scenario import Scenario
from dart_gym.tasks.catalog.task import Task

_BUILT_IN = {
    "miniwob": "dart_gym.tasks.suites.miniwob",
    "dialogs": "dart_gym.tasks.suites.dialogs",
    "debian-basics": "dart_gym.tasks.suites.debian_basics",
    "fake": "dart_gym.tasks.suites.fake_suite",
    "osworld": "dart_gym.tasks.osworld.osworld_scenario",
}
OSWORLD_PROFILE = "osworld"  # what OSWorld's own tasks run on, those without the key "dart"
_DESKTOP_KEYS = frozenset({"kind", "width", "height", "profile"})
_MAX_SCREEN = 7680


@dataclass(slots=True)
class _Suite:
    loader: Callable[[], Iterable[Task]]
    scenario_factory: Callable[[], Scenario]
    tasks: dict[str, Task] | None = None


_registered: dict[str, _Suite] = {}


def register_suite(name: str, loader: Callable[[], Iterable[Task]], scenario_factory: Callable[[], Scenario]) -> None:
    """Make a suite known. Built-in suites call this when their module is imported.

    Args:
        name: the part of the task ids before the slash.
        loader: returns the suite's tasks; called once, when they are first asked for.
        scenario_factory: returns a fresh scenario for one desktop.
    """
    if not name or "/" in name:
        raise TaskError(f"a suite's name must be non-empty and without a slash, got {name!r}")
    _registered[name] = _Suite(loader, scenario_factory)


def suites() -> list[str]:
    """Names of all suites, sorted."""
    return sorted({*_BUILT_IN, *_registered})


def task_ids(suite: str | None = None) -> list[str]:
    """Ids of all tasks, or of one suite's, sorted. Raises `UnknownTaskError` for an unknown suite."""
    names = suites() if suite is None else [suite]
    return sorted(task_id for name in names for task_id in _tasks(name))


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
    suite = task.split("/", 1)[0]
    if "/" in task and suite in suites():
        found = _tasks(suite).get(task)
        if found is not None:
            return found
    near = difflib.get_close_matches(task, task_ids(), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(map(repr, near))}?" if near else "`dart-gym tasks` lists all tasks"
    raise UnknownTaskError(f"unknown task {task!r}; {hint}")


def make_scenario(suite: str) -> Scenario:
    """Return a fresh scenario that runs a suite's tasks on one desktop, episode after episode."""
    return _suite(suite).scenario_factory()


def task_from_file(path: Path, suite: str = "osworld") -> Task:
    """Read an OSWorld JSON file; raises `TaskError` with the reason."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownTaskError(f"cannot read task file {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise TaskError(f"{path} is not JSON: {error}") from error
    return task_from_dict(raw, suite)


def read_suite(directory: Path) -> dict[Path, Task]:
    """All tasks below a directory, by file, sorted: OSWorld's `evaluation_examples`, or its `examples`, or any other.

    Raises:
        UnknownTaskError: there is no such directory, or no task in it.
        TaskError: a file is no task; the message names it.
    """
    examples = directory / "examples"
    found = sorted((examples if examples.is_dir() else directory).rglob("*.json"))
    if not found:
        raise UnknownTaskError(f"there are no task files (*.json) in {directory}")
    tasks = {}
    for path in found:
        try:
            tasks[path] = task_from_file(path)
        except UnknownTaskError:
            raise
        except TaskError as error:
            raise TaskError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    return tasks


def task_from_dict(raw: dict[str, Any], suite: str = "osworld") -> Task:
    """Return the task that an OSWorld JSON stands for.

    The optional key "dart" holds what OSWorld's format lacks: `desktop` (kind, width, height, profile),
    `max_steps`, `parameters`, `ready` and `oracle` (see `dart_gym.tasks.osworld.osworld_scenario`).

    Raises:
        TaskError: a required key is missing or has the wrong type.
    """
    if not isinstance(raw, dict):
        raise TaskError(f"a task must be a JSON object, got {type(raw).__name__}")
    name, instruction = raw.get("id"), raw.get("instruction")
    if not isinstance(name, str) or not name:
        raise TaskError("a task needs a non-empty string 'id'")
    if not isinstance(instruction, str):
        raise TaskError(f"task {name!r} needs a string 'instruction'")
    config, evaluator, extra = raw.get("config") or [], raw.get("evaluator") or {}, raw.get("dart") or {}
    if not isinstance(config, list) or not all(isinstance(step, dict) for step in config):
        raise TaskError(f"task {name!r}: 'config' must be a list of objects")
    if not isinstance(evaluator, dict) or not isinstance(extra, dict):
        raise TaskError(f"task {name!r}: 'evaluator' and 'dart' must be objects")
    max_steps = extra.get("max_steps", 15)
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise TaskError(f"task {name!r}: dart.max_steps must be a positive integer, got {max_steps!r}")
    return Task(
        id=f"{suite}/{name}",
        instruction=instruction,
        desktop=_desktop_spec(name, extra.get("desktop") or {}, OSWORLD_PROFILE if "dart" not in raw else "bare"),
        max_steps=max_steps,
        raw=raw,
    )


def _desktop_spec(name: str, fields: Any, profile: str) -> DesktopSpec:
    if not isinstance(fields, dict) or not fields.keys() <= _DESKTOP_KEYS:
        raise TaskError(f"task {name!r}: dart.desktop may hold {', '.join(sorted(_DESKTOP_KEYS))}, got {fields!r}")
    for key, value in fields.items():
        if key in ("width", "height"):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_SCREEN:
                raise TaskError(f"task {name!r}: dart.desktop.{key} must be in [1, {_MAX_SCREEN}], got {value!r}")
        elif not isinstance(value, str):
            raise TaskError(f"task {name!r}: dart.desktop.{key} must be a string, got {value!r}")
        elif key == "kind" and value == "osworld":
            raise TaskError(f"task {name!r}: a task cannot name a machine: give the option osworld_url instead")
    return DesktopSpec(**{"profile": profile, **fields})


def _suite(name: str) -> _Suite:
    if name not in _registered:
        module = _BUILT_IN.get(name)
        if module is None:
            near = difflib.get_close_matches(name, suites(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownTaskError(f"unknown suite {name!r}{hint} (known: {', '.join(suites())})")
        importlib.import_module(module)
        if name not in _registered:
            raise TaskError(f"module {module} did not register its suite {name!r}")
    return _registered[name]


def _tasks(name: str) -> dict[str, Task]:
    suite = _suite(name)
    if suite.tasks is None:
        suite.tasks = {task.id: task for task in suite.loader()}
    return suite.tasks
