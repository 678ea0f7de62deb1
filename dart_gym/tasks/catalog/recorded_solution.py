"""Recorded solutions beside tasks: `NAME.solution.json` holds the actions that solve the task in `NAME.json`.

The file is `{"oracle": [...]}`, and may say in words `how`. Each entry is an action as a dict, with the waits that
`dart_gym.tasks.osworld.oracle_script` explains. The task's own file stays as it is: OSWorld's tasks are scored by
OSWorld's own evaluator, and a hash does not change with the way to the goal.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dart_gym.core.actions import ACTION_TYPES
from dart_gym.core.errors import TaskError
from dart_gym.core.suggestions import suggest

SOLUTION = ".solution.json"


def read_solution(task: Path) -> tuple[dict[str, Any], ...]:
    """Return the recorded solution beside a task's file, or an empty one if there is no such file.

    Raises:
        TaskError: if the file is malformed.
    """
    path = task.with_name(task.stem + SOLUTION)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise TaskError(f"{path} is no recorded solution: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("oracle"), list) or not found["oracle"]:
        raise TaskError(f"{path} must hold an object with 'oracle', a list of actions")
    for number, entry in enumerate(found["oracle"], start=1):
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if kind not in ACTION_TYPES:
            hint = suggest(str(kind), ACTION_TYPES, otherwise=f"known: {', '.join(ACTION_TYPES)}")
            raise TaskError(f"{path}: action {number} is of the unknown kind {kind!r}; {hint}")
    return tuple(found["oracle"])


def check_owners(solutions: Iterable[Path], tasks: Iterable[Path]) -> None:
    """Check that each recorded solution has its task.

    Raises:
        TaskError: if a solution has no task.
    """
    owners = {task.with_name(task.stem + SOLUTION) for task in tasks}
    for path in sorted(set(solutions) - owners):
        task = path.name.removesuffix(SOLUTION) + ".json"
        raise TaskError(f"{path} is the solution of an unknown task: there is no {task} beside it")
