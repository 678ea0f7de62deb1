"""Checks a directory of OSWorld tasks: do they parse, survive the round trip, and run here; if not, why.

Invariant: every set-up step, metric and getter of every task is supported, or named in a reason to skip that task.
"""

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dart_gym.core.errors import TaskError
from dart_gym.desktops.applications.debian_applications import application_of
from dart_gym.tasks.catalog.registry import read_suite
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.requirements import needs, upstream_names
from dart_gym.tasks.requirements.skip_reasons import kind_of, missing_programs, skip_reasons
from dart_gym.tasks.setup.setup_runner import HANDLERS
from dart_gym.utils.shown_text import as_cell


@dataclass(frozen=True, slots=True)
class Checked:
    """One task and why it is skipped; no reasons where it can run."""

    path: Path
    task: Task
    reasons: list[str] = field(default_factory=list)

    @property
    def domain(self) -> str:
        """Name of the folder that the task's file lies in: OSWorld's domains."""
        return self.path.parent.name


def check_suite(directory: Path, cache: Container[str], has_program: Callable[[str], bool]) -> list[Checked]:
    """Check all tasks below a directory.

    Raises:
        TaskError: if the directory holds no tasks, or a task would be written differently than it was read.
    """
    return [
        Checked(path, task, skip_reasons(_round_trip(path, task), cache, has_program))
        for path, task in read_suite(directory).items()
    ]


def _round_trip(path: Path, task: Task) -> Task:
    if json.loads(json.dumps(task.raw)) != json.loads(path.read_text(encoding="utf-8")):
        raise TaskError(f"{path} does not survive the round trip")
    return task


def tasks_by_package(tasks: Iterable[Task], has_program: Callable[[str], bool]) -> dict[str, list[str]]:
    """Return which Debian packages tasks wait for, those that most wait for first: "gimp" -> ids of tasks."""
    waiting: dict[str, list[str]] = {}
    for task in tasks:
        known = [
            [one for name in need if (one := application_of(name))] for need in missing_programs(task, has_program)
        ]
        for packages in dict.fromkeys(" ".join(found[0].packages) for found in known if found):
            waiting.setdefault(packages, []).append(task.id)
    return dict(sorted(waiting.items(), key=lambda item: -len(item[1])))


def unnamed_parts(checked: Iterable[Checked]) -> list[str]:
    """Parts of tasks that are neither supported nor named in a reason: this must be empty."""
    found = []
    for item in checked:
        told = " ".join(item.reasons)
        parts = {str(step.get("type")) for _, step in needs.steps_of(item.task)} - HANDLERS.keys()
        parts |= set(needs.funcs_of(item.task)) - upstream_names.METRICS
        parts |= {str(getter.get("type")) for getter in needs.getters_of(item.task)} - upstream_names.GETTERS
        found += [f"{item.task.id}: {part}" for part in sorted(parts) if part not in told]
    return found


def domain_table(checked: list[Checked]) -> Table:
    """How many tasks of each domain run, and are skipped for which kinds of reasons, each in its own column."""
    kinds = [kind for kind, _ in Counter(kind for item in checked for kind in _kinds(item)).most_common()]
    table = Table(title=f"{len(checked)} tasks", title_justify="left")
    for column in ("domain", "tasks", "runnable", "skipped", *kinds):
        table.add_column(column, justify="left" if column == "domain" else "right")
    domains = sorted({item.domain for item in checked})
    for domain in [*domains, "all"]:
        rows = [item for item in checked if domain in (item.domain, "all")]
        counts = Counter(kind for item in rows for kind in _kinds(item))
        skipped = sum(bool(item.reasons) for item in rows)
        cells = [len(rows), len(rows) - skipped, skipped, *(counts[kind] for kind in kinds)]
        table.add_section() if domain == "all" else None
        table.add_row(as_cell(domain), *map(str, cells))
    return table


def _kinds(item: Checked) -> set[str]:
    return {kind_of(reason) for reason in item.reasons}


def parts_table(checked: list[Checked]) -> Table:
    """Every set-up step, getter and metric that occurs, in how many tasks, and whether it is supported."""
    table = Table(title="what the tasks are made of", title_justify="left")
    for column in ("part", "name", "tasks", "supported"):
        table.add_column(column, justify="right" if column == "tasks" else "left")
    skipped = {part: reason for item in checked for reason in item.reasons for part in reason.split()}
    for part, names, known in (
        ("step", lambda task: {str(step.get("type")) for _, step in needs.steps_of(task)}, HANDLERS.keys()),
        ("getter", lambda task: {str(getter.get("type")) for getter in needs.getters_of(task)}, upstream_names.GETTERS),
        ("metric", lambda task: set(needs.funcs_of(task)), upstream_names.METRICS),
    ):
        counts = Counter(name for item in checked for name in names(item.task))
        for name, count in counts.most_common():
            reason = skipped.get(name, "")
            supported = as_cell(reason) or ("yes" if name in known else "no")
            table.add_row(part, as_cell(name), str(count), supported)
    return table


def print_check(checked: list[Checked], console: Console, *, parts: bool = False) -> None:
    """Print the table by domain, and with `parts` that of steps, getters and metrics."""
    console.print(domain_table(checked))
    if parts:
        console.print(parts_table(checked))
