"""A suite as a package of one's own: tasks in OSWorld's format from templates, with a test and an entry point.

Invariants:
    - What is written passes `dart-gym tasks check` and its own test as it is.
    - Nothing that is there is written over: a suite takes further tasks, one file each.
"""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from dart_gym.core.errors import TaskError
from dart_gym.core.suggestions import suggest
from dart_gym.tasks.catalog.registry import SUITES, task_from_dict

_TEMPLATES = files(__package__) / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_VALUE = "{value}"
_FILES = {"pyproject.txt": "pyproject.toml", "readme.txt": "README.md", "test.txt": "tests/test_MODULE.py"}


def templates() -> list[str]:
    """Names of the templates of tasks."""
    return sorted(file.name.removesuffix(".json") for file in _TEMPLATES.iterdir() if file.name.endswith(".json"))


def from_template(template: str, task: str, instruction: str = "", parameter: str = "value", choices: str = "") -> Any:
    """A task's JSON; `parameter` names what the seed chooses. Raises `TaskError`: an answer does not fit.

    Args:
        template: one of `templates`.
        task: its id.
        instruction: with the parameter in braces; "" for the template's.
        parameter: small letters and "_".
        choices: its values, separated by commas; "" for the template's.
    """
    if template not in templates():
        raise TaskError(f"unknown template {template!r}; {suggest(template, templates())}")
    if not re.fullmatch(r"[a-z][a-z_]*", parameter):
        raise TaskError(f"the parameter {parameter!r} is no name: use small letters and _")
    placed, values = f"{{{parameter}}}", [one.strip() for one in choices.split(",") if one.strip()]
    if choices and len(set(values)) < 2:
        raise TaskError(f"{placed} needs two values at least, separated by commas: got {choices!r}")
    raw = json.loads((_TEMPLATES / f"{template}.json").read_text(encoding="utf-8").replace(_VALUE, placed))
    drawn = raw["dart"]["parameters"].pop("value")
    raw["dart"]["parameters"] = {parameter: {"choice": list(dict.fromkeys(values))} if values else drawn}
    if instruction and placed not in instruction:
        raise TaskError(f"the instruction does not say {placed}, which the evaluator asks for: {instruction!r}")
    return {**raw, "id": task, "instruction": instruction or raw["instruction"]}


def module_of(suite: str) -> str:
    """The module in which a suite's tasks lie."""
    return f"{suite.replace('-', '_')}_tasks"


def write_task(folder: Path, suite: str, raw: dict[str, Any]) -> list[Path]:
    """Write a task into the package of a suite, which is made if it is not there; the files that were written.

    Raises:
        TaskError: a bad name, no task, or something else lies there.
    """
    for kind, name in (("suite", suite), ("task", str(raw["id"]))):
        if not _NAME.fullmatch(name):
            raise TaskError(f"the {kind} {name!r} is no name: use small letters, digits and single hyphens")
    if suite in SUITES.built_in:
        raise TaskError(f"the suite {suite!r} is built in: choose another name")
    task_from_dict(raw, suite)
    module = module_of(suite)
    path, written = folder / module / f"{raw['id']}.json", {}
    if path.exists():
        raise TaskError(f"{path} is there already: choose another --task")
    if not (folder / module / "__init__.py").exists():
        if folder.is_dir() and any(folder.iterdir()):
            raise TaskError(f"{folder} holds something else than the suite {suite!r}: choose another --out")
        names = {"SUITE": suite, "MODULE": module, "CLASS": "".join(map(str.capitalize, suite.split("-")))}
        for source, target in {**_FILES, "suite.txt": f"{module}/__init__.py"}.items():
            text = (_TEMPLATES / source).read_text(encoding="utf-8")
            written[folder / target.replace("MODULE", module)] = re.sub(
                "@(SUITE|MODULE|CLASS)@", lambda found: names[found[1]], text
            )
    written[path] = json.dumps(raw, indent=2, ensure_ascii=False) + "\n"
    for file, text in written.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return list(written)
