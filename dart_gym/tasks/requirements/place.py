"""Where an environment has its desktops, and what is known of that machine: its programs and its download cache.

Invariants:
    - Only reasons that are known for sure count. Of a cluster its servers are asked; what none of them says, and what a
      machine with OSWorld's server has, is not known.
    - A task counts as runnable on a cluster where every server that answers can run it: nobody knows which one it gets.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from dart_gym.core.errors import ProtocolError
from dart_gym.tasks.catalog import registry
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.requirements.skip_reasons import UNKNOWN_KINDS, kind_of, machine_has, skip_reasons
from dart_gym.tasks.setup.download_cache import DownloadCache, host_of
from dart_gym.tasks.setup.web_source import allowed_hosts

MOST_ASKED = 20_000  # programs and files of one question
_SEEN_INSIDE = tuple(map(PurePosixPath, ("/usr", "/bin", "/sbin", "/opt")))


@dataclass(frozen=True, slots=True)
class Lacking:
    """Which programs and files, of those that were asked for, a machine does not have."""

    programs: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()

    def __or__(self, other: Lacking) -> Lacking:
        """Return what one of two machines does not have."""
        return Lacking(self.programs | other.programs, self.files | other.files)

    def to_wire(self) -> dict[str, Any]:
        """As a message between machines has it."""
        return {"programs": sorted(self.programs), "files": sorted(self.files)}

    @classmethod
    def from_wire(cls, values: dict[str, Any]) -> Lacking:
        """Read what `to_wire` wrote; a question has the same form.

        Raises:
            ProtocolError: if it is malformed.
        """
        found = [values.get(name, []) for name in ("programs", "files")]
        for names in found:
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ProtocolError("programs and files must be lists of names")
        if sum(map(len, found)) > MOST_ASKED:
            raise ProtocolError(f"at most {MOST_ASKED} programs and files may be asked for at once")
        return cls(*map(frozenset, found))


Ask = Callable[[Lacking], Lacking]
"""Asks another machine which of these programs and files it does not have."""


def lacking_here(asked: Lacking) -> Lacking:
    """Return what desktops of this machine do not have. Of files that no desktop sees, nothing is said."""
    here = Place.of_this_machine()
    programs = {name for name in asked.programs if _may_be_told(name) and not here.has_program(name)}
    return Lacking(frozenset(programs), frozenset(url for url in asked.files if url not in here.cache))


def _may_be_told(program: str) -> bool:
    path = PurePosixPath(os.path.normpath(program))
    return "/" not in program or any(path.is_relative_to(folder) for folder in _SEEN_INSIDE)


class _Asked:
    """What another machine has, asked for in as few questions as possible: unknown names count as there until then."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._missing = Lacking()
        self._known: set[str] = set()
        self._open: dict[str, set[str]] = {"programs": set(), "files": set()}

    def has_program(self, name: str) -> bool:
        return self._has("programs", name, self._missing.programs)

    def __contains__(self, url: object) -> bool:
        return not isinstance(url, str) or self._has("files", url, self._missing.files)

    def _has(self, kind: str, name: str, missing: frozenset[str]) -> bool:
        if name not in self._known:
            self._open[kind].add(name)
        return name not in missing

    def learn(self) -> bool:
        """Ask for what has come up; returns whether anything had."""
        asked = Lacking(*map(frozenset, self._open.values()))
        if asked == Lacking():
            return False
        self._missing |= self._ask(asked)
        self._known |= asked.programs | asked.files
        for names in self._open.values():
            names.clear()
        return True


@dataclass(frozen=True, slots=True)
class Place:
    """Where desktops are: its download cache and programs; `is_vm`: a machine with OSWorld's server.

    `learn` asks for what has come up since, and returns whether reasons may be others now; `name` is for messages.
    """

    cache: Container[str]
    has_program: Callable[[str], bool]
    is_vm: bool = False
    name: str = "here"
    learn: Callable[[], bool] = field(default=lambda: False)

    @classmethod
    def of(cls, url: str | None = None, osworld_url: str | None = None, ask: Ask | None = None) -> Place:
        """Return the place of an environment's desktops.

        Args:
            url: of the cluster; None for a private one, on this machine.
            osworld_url: of a machine that is used instead of a desktop.
            ask: asks the cluster; without it nothing is known of one.
        """
        if osworld_url is not None:
            return cls(_Everything(), lambda program: True, is_vm=True)
        if url is None:
            return cls.of_this_machine()
        if ask is None:
            return cls.elsewhere()
        answers = _Asked(ask)
        return cls(answers, answers.has_program, name=f"on the cluster at {url}", learn=answers.learn)

    @classmethod
    def of_this_machine(cls) -> Place:
        """Return this machine; without Xvfb its desktops are in containers, of which nothing is known."""
        if shutil.which("Xvfb") is None:
            return cls.elsewhere()
        return cls(Fetchable(DownloadCache.default()), functools.cache(machine_has))

    @classmethod
    def elsewhere(cls) -> Place:
        """Return the place of desktops of other machines, of whose programs and files nothing is known."""
        return cls(_Everything(), lambda program: True)

    def reasons_by_id(self, tasks: Iterable[Task]) -> dict[str, list[str]]:
        """Return why each task cannot run or be scored there; nothing where it can."""
        listed = list(tasks)
        while True:
            found = {task.id: self.reasons(task) for task in listed}
            if not self.learn():
                return found

    def reasons(self, task: Task) -> list[str]:
        """Return why a task cannot run or be scored there, as far as that is known now."""
        if not (task.raw.get("config") or task.raw.get("evaluator") or task.suite == registry.OSWORLD):
            return []  # a suite of another kind, which says itself what it lacks
        found = skip_reasons(task, self.cache, self.has_program)
        return [reason for reason in found if kind_of(reason) in UNKNOWN_KINDS] if self.is_vm else found


class _Everything:
    """A cache of which nothing is known."""

    def __contains__(self, url: object) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Fetchable:
    """What a cache has, and what a reset may fetch into it: files of hosts that the operator named."""

    cache: DownloadCache

    def __contains__(self, url: object) -> bool:
        if url in self.cache or not isinstance(url, str):
            return True
        if self.cache.offline or host_of(url) == url:
            return False
        return not {host_of(url), urlsplit(url).netloc}.isdisjoint(allowed_hosts())
