"""Which tasks can run where an environment has its desktops, and why the others cannot.

Drawing takes what can run; who names another task is told why it cannot.

Invariants:
    - Only reasons that are known for sure count. Programs and cached files of another machine are not known; where
      OSWorld's server runs, only what we cannot carry out or score is.
    - What is left out is logged once in a process, with its reasons.
"""

from __future__ import annotations

import functools
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from dart_gym.core.errors import UnrunnableTaskError
from dart_gym.tasks.catalog import registry
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.catalog.task_index import TaskIndex, imported_suites
from dart_gym.tasks.requirements.skip_reasons import (
    NO_EVALUATOR,
    UNKNOWN_KINDS,
    kind_of,
    machine_has,
    skip_reasons,
)
from dart_gym.tasks.setup.download_cache import DownloadCache
from dart_gym.tasks.setup.web_source import allowed_hosts

log = logging.getLogger(__name__)
MOST_NAMED = 10  # tasks in one message; `Selection.skipped` and `dart-gym tasks check --reasons` have all


@dataclass(frozen=True, slots=True)
class Place:
    """Where desktops are: its download cache and programs; `is_vm`: a machine with OSWorld's server."""

    cache: Container[str]
    has_program: Callable[[str], bool]
    is_vm: bool = False

    @classmethod
    def of(cls, url: str | None = None, osworld_url: str | None = None) -> Place:
        """Return the place of an environment's desktops.

        Args:
            url: of the cluster; None for a private one. A Unix socket is this machine.
            osworld_url: of a machine that is used instead of a desktop.
        """
        is_here = url is None or all(part.strip().startswith("ws+unix:") for part in url.split(","))
        if osworld_url is not None:
            return cls(_Everything(), lambda program: True, is_vm=True)
        if not is_here or shutil.which("Xvfb") is None:  # without it desktops are in containers
            return cls.elsewhere()
        return cls(_Fetchable(DownloadCache.default()), functools.cache(machine_has))

    @classmethod
    def elsewhere(cls) -> Place:
        """Return the place of desktops of other machines, of whose programs and files nothing is known."""
        return cls(_Everything(), lambda program: True)

    def reasons(self, task: Task) -> list[str]:
        """Return why a task cannot run or be scored there; nothing where it can."""
        if not (task.raw.get("config") or task.raw.get("evaluator") or task.suite == registry.OSWORLD):
            return []  # a suite of another kind, which says itself what it lacks
        found = skip_reasons(task, self.cache, self.has_program)
        return [reason for reason in found if kind_of(reason) in UNKNOWN_KINDS] if self.is_vm else found


class _Everything:
    """A cache of which nothing is known."""

    def __contains__(self, url: object) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _Fetchable:
    """What a cache has, and what a reset may fetch into it: files of hosts that the operator named."""

    cache: DownloadCache

    def __contains__(self, url: object) -> bool:
        if url in self.cache or not isinstance(url, str):
            return True
        parts = urlsplit(url)
        return not self.cache.offline and not {parts.hostname, parts.netloc}.isdisjoint(allowed_hosts())


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
    return _told(f"the suite {suite}", _imported(suite) or _selected(registry.task_ids(suite), place))


def select_listed(name: str, ids: Iterable[str], place: Place) -> Selection:
    """Return which tasks of a list can run, as `select` does of a suite; `name` is what messages call the list."""
    return _told(name, _selected(ids, place))


def _told(name: str, selection: Selection) -> Selection:
    """Report what is left out and return the selection.

    Raises:
        UnrunnableTaskError: if nothing is left.
    """
    if selection.skipped and not selection.runnable:
        raise UnrunnableTaskError(f"no task of {name} can run here: {_summary(selection.skipped)}")
    if selection.skipped:
        total = len(selection.runnable) + len(selection.skipped)
        left = f"{len(selection.skipped)} of {total} tasks cannot run here and are left out"
        _say_once(f"{name}: {left}: {_summary(selection.skipped)}")
    return selection


def runnable_ids(suite: str, url: str | None = None) -> list[str]:
    """Return the ids of a suite's tasks that can run on a cluster, or here. Raises as `select`."""
    return list(select(suite, Place.of(url)).runnable)


def named_tasks(names: Iterable[str], url: str | None = None) -> list[str]:
    """Return the ids of tasks that are named, and of those of suites that can run on a cluster; JSONs' paths stay.

    Args:
        names: of tasks, of files with a task, and of suites, "miniwob" or "miniwob/*".
        url: of the cluster; None for this machine.

    Raises:
        UnknownTaskError: no such task or suite.
        UnrunnableTaskError: tasks that are named, or all of a suite, cannot run there.
        TaskError: a malformed task.
    """
    place = Place.of(url)
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
    found = {task.id: reasons for task in tasks if (reasons := _reasons(task, place))}
    if len(found) == 1:
        ((name, reasons),) = found.items()
        raise UnrunnableTaskError(f"task {name} cannot run here: {'; '.join(reasons)}{_next_step(reasons)}")
    if found:
        raise UnrunnableTaskError(f"{len(found)} of the named tasks cannot run here: {_summary(found)}")


def _reasons(task: Task, place: Place) -> list[str]:
    if (index := _index(task.suite)) is None:
        return [reason for reason in place.reasons(task) if reason != NO_EVALUATOR]
    rows = index.rows("SELECT needs FROM tasks WHERE name = ?", (task.id.partition("/")[2],))
    return [f"it needs {needs}" for (needs,) in rows if needs]


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
    found = {name: place.reasons(registry.get_task(name)) for name in ids}
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
def _say_once(message: str) -> None:
    log.warning("%s", message)
