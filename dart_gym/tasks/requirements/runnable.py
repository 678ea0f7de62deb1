"""Which tasks can run where an environment has its desktops, and why the others cannot.

Drawing takes what can run; who names another task is told why it cannot.

Invariant: what is left out is logged once in a process, with its reasons.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dart_gym.core.errors import UnrunnableTaskError
from dart_gym.tasks.catalog import registry
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.catalog.task_index import TaskIndex, imported_suites
from dart_gym.tasks.requirements.place import Place
from dart_gym.tasks.requirements.skip_reasons import NO_EVALUATOR, kind_of

log = logging.getLogger(__name__)
MOST_NAMED = 10  # tasks in one message; `Selection.skipped` and `dart-gym tasks check --reasons` have all


@dataclass(frozen=True, slots=True)
class Selection:
    """Ids of the tasks that can run, sorted, and the others with their reasons."""

    runnable: tuple[str, ...]
    skipped: Mapping[str, list[str]] = field(default_factory=dict)


def select(suite: str, place: Place) -> Selection:
    """Return which tasks of a suite can run; what is left out is logged once.

    Raises:
        UnknownTaskError: no such suite.
        UnrunnableTaskError: it has tasks, and none of them can run.
    """
    return _told(f"the suite {suite}", _imported(suite) or _selected(registry.task_ids(suite), place), place)


def select_listed(name: str, ids: Iterable[str], place: Place) -> Selection:
    """Return which tasks of a list can run, as `select` does of a suite; `name` is what messages call the list."""
    return _told(name, _selected(ids, place), place)


def _told(name: str, selection: Selection, place: Place) -> Selection:
    """Report what is left out and return the selection.

    Raises:
        UnrunnableTaskError: if nothing is left.
    """
    if selection.skipped and not selection.runnable:
        raise UnrunnableTaskError(f"no task of {name} can run {place.name}: {_summary(selection.skipped)}")
    if selection.skipped:
        total = len(selection.runnable) + len(selection.skipped)
        left = f"{len(selection.skipped)} of {total} tasks cannot run {place.name} and are left out"
        say_once(f"{name}: {left}: {_summary(selection.skipped)}")
    return selection


def named_tasks(names: Iterable[str], place: Place | None = None) -> list[str]:
    """Return the ids of tasks that are named, and of those of suites that can run there; JSONs' paths stay.

    Args:
        names: of tasks, of files with a task, and of suites, "miniwob" or "miniwob/*".
        place: where the desktops are; None for this machine.

    Raises:
        UnknownTaskError: no such task or suite.
        UnrunnableTaskError: tasks that are named, or all of a suite, cannot run there.
        TaskError: a malformed task.
    """
    place = place or Place.of()
    found = list[str]()
    named = list[Task]()
    for name in names:
        suite = name.removesuffix("/*")
        if registry.is_suite(suite):
            found += select(suite, place).runnable
        else:
            named.append(registry.get_task(name))
            found.append(name if name.endswith(".json") else named[-1].id)
    check_runnable(named, place)
    return list(dict.fromkeys(found))


def check_runnable(tasks: Iterable[Task], place: Place) -> None:
    """See that tasks can run. One without an evaluator can: it has no score.

    Raises:
        UnrunnableTaskError: some cannot. It names each with its reasons.
    """
    found = {name: reasons for name, reasons in _reasons(list(tasks), place).items() if reasons}
    if len(found) == 1:
        ((name, reasons),) = found.items()
        raise UnrunnableTaskError(f"task {name} cannot run {place.name}: {'; '.join(reasons)}{_next_step(reasons)}")
    if found:
        raise UnrunnableTaskError(f"{len(found)} of the named tasks cannot run {place.name}: {_summary(found)}")


def _reasons(tasks: list[Task], place: Place) -> dict[str, list[str]]:
    """Return each task's reasons by its id; those of an imported suite are in its index."""
    found = place.reasons_by_id(task for task in tasks if _index(task.suite) is None)
    found = {name: [reason for reason in reasons if reason != NO_EVALUATOR] for name, reasons in found.items()}
    for task in tasks:
        if (index := _index(task.suite)) is not None:
            rows = index.rows("SELECT needs FROM tasks WHERE name = ?", (task.id.partition("/")[2],))
            found[task.id] = [f"it needs {needs}" for (needs,) in rows if needs]
    return found


def _index(name: str) -> TaskIndex | None:
    """Return the index of an imported suite; None for others, whose names go first."""
    return TaskIndex(name) if name in imported_suites() and name not in registry.SUITES.names() else None


def _imported(suite: str) -> Selection | None:
    """The selection of an imported suite, whose index says it; None for others."""
    name, bracket, chosen = suite.partition("[")
    if (index := _index(name)) is None:
        return None
    chosen = chosen.removesuffix("]")
    if "needs" in chosen:
        return Selection(tuple(registry.task_ids(suite)))  # asked for by what they need
    runnable = index.ids(f"{chosen},needs=" if chosen else "needs=")
    left = sorted({*index.ids(chosen)} - {*runnable})
    needs = (
        {f"{name}/{task}": [f"needs: {why}"] for task, why in index.rows("SELECT name, needs FROM tasks")}
        if left
        else {}
    )
    return Selection(tuple(runnable), {task: needs[task] for task in left})


def _selected(ids: Iterable[str], place: Place) -> Selection:
    names = list(ids)
    reasons = place.reasons_by_id(map(registry.get_task, names))
    found = {name: reasons[registry.get_task(name).id] for name in names}
    runnable = tuple(name for name, reasons in found.items() if not reasons)
    return Selection(runnable, {name: reasons for name, reasons in found.items() if reasons})


def _summary(skipped: Mapping[str, list[str]]) -> str:
    """Return kinds of reasons with their numbers, and the first tasks with theirs."""
    kinds = Counter(kind for reasons in skipped.values() for kind in {kind_of(reason) for reason in reasons})
    counts = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    named = "".join(f"\n  {name}: {'; '.join(reasons)}" for name, reasons in list(skipped.items())[:MOST_NAMED])
    more = len(skipped) - MOST_NAMED
    rest = f"\n  and {more} more; `dart-gym tasks check DIRECTORY --reasons` names all" if more > 0 else ""
    return f"{counts}{named}{rest}{_next_step(reason for reasons in skipped.values() for reason in reasons)}"


def _next_step(reasons: Iterable[str]) -> str:
    kinds = {kind_of(reason) for reason in reasons}
    steps = ["`dart-gym tasks mirror` fills the download cache"] if "not mirrored" in kinds else []
    steps += ["`dart-gym doctor` says which package has a program"] if "missing program" in kinds else []
    return f"; next step: {', '.join(steps)}" if steps else ""


@functools.cache
def say_once(message: str) -> None:
    """Log a warning once per process."""
    log.warning("%s", message)
