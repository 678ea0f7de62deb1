"""Parameterised tasks: a seed chooses values, placeholders in the task's JSON are filled with them. Pure.

Invariants:
    - The same (specification, task id, seed) draws the same values on every machine and Python version.
    - A placeholder is "{name}"; braces around anything that is not a parameter stay as they are (shell, JSON).
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from dart_gym.core.errors import TaskError

Value = str | int
FIRST_TRAINING_SEED = 10_000
"""Seeds below are held out for evaluation."""
HELD_OUT_SHARE = 5
"""One in this many instances of a task is held out, where the task keeps instances apart."""


def draw(specification: Mapping[str, Any], task_id: str, seed: int) -> dict[str, Value]:
    """Draw a value for each parameter of a task.

    Args:
        specification: by placeholder name, `{"choice": [...]}` (strings, integers, or objects whose fields become
            "name.field") or `{"integer": [low, high]}` (both included).
        task_id: keeps tasks of equal seeds independent of each other.
        seed: any integer.

    Raises:
        TaskError: the specification is malformed.
    """
    values: dict[str, Value] = {}
    for name, rule in specification.items():
        match rule:
            case {"choice": [_, *_] as options}:
                chosen = options[_uniform(task_id, name, seed, len(options))]
            case {"integer": [int(low), int(high)]} if low <= high:
                chosen = low + _uniform(task_id, name, seed, high - low + 1)
            case _:
                raise TaskError(f"task {task_id}: parameter {name!r} needs 'choice' or 'integer', got {rule!r}")
        fields = (
            {f"{name}.{key}": value for key, value in chosen.items()} if isinstance(chosen, dict) else {name: chosen}
        )
        for key, value in fields.items():
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise TaskError(f"task {task_id}: parameter {key!r} must be text or an integer, got {value!r}")
            values[key] = value
    return values


def held_out(key: str) -> bool:
    """Return whether an instance, of which `key` says all that matters, may be drawn by held-out seeds only."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % HELD_OUT_SHARE == 0


def fill(value: Any, values: Mapping[str, Value], *, typed: bool = False) -> Any:
    """Return a copy of a JSON value with all placeholders replaced, keys of objects left alone.

    With `typed` a string that is nothing but one placeholder becomes the value itself (an integer stays one).
    """
    if isinstance(value, str):
        return _fill_text(value, values, typed)
    if isinstance(value, list):
        return [fill(item, values, typed=typed) for item in value]
    if isinstance(value, dict):
        return {key: fill(item, values, typed=typed) for key, item in value.items()}
    return value


def _fill_text(text: str, values: Mapping[str, Value], typed: bool) -> Value:
    if typed and text[:1] == "{" and text[-1:] == "}" and text[1:-1] in values:
        return values[text[1:-1]]
    if "{" in text:
        for name, chosen in values.items():
            text = text.replace(f"{{{name}}}", str(chosen))
    return text


def _uniform(task_id: str, name: str, seed: int, size: int) -> int:
    # A hash rather than `random`: adding a parameter to a task must not change the draws of the others.
    digest = hashlib.blake2b(f"{task_id}\0{name}\0{seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % size
