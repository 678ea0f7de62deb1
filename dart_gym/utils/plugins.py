"""One rule for every name that stands for a class: built in, an entry point of an installed package, or `module:Class`.

A kind of thing that may be named (suites, action formats, losses, ...) is one `Registry`. Of a name that is given in
a configuration, on a command line or in Python, `Registry.get` makes the object.

Invariants:
    - Nothing is imported before it is asked for, built-in things included.
    - A package cannot replace what is built in, and two packages cannot share a name: both are refused, by package.
    - Whatever is wrong with a plug-in is one `PluginError` of one line: the package, the reason and the next step.
    - The laboratory of a checkout (`dart_lab`) is a package like others, but for not being installed.
    - Processes that are started with `child_environment` import what the process that started them can import.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from dart_gym.core.errors import PluginError, UnknownNameError
from dart_gym.core.project_pages import integration, page
from dart_gym.core.suggestions import suggest

T = TypeVar("T")
_LABORATORY = Path(__file__).parents[2] / "dart_lab"
"""The laboratory of a checkout, with the metadata of a package next to its modules: found without an installation."""
Check = Callable[[Any], str | None]
"""Says what an object lacks to be of a kind, as the rest of a sentence ("lacks the method reset"); None if nothing."""
INTEGRATIONS = {
    "dart_gui.policies": dict.fromkeys(("anthropic", "openai", "gemini"), "hosted_models"),
    "dart_gui.formats": dict.fromkeys(("anthropic", "openai", "gemini"), "hosted_models")
    | dict.fromkeys(("glm_v", "holo", "opencua", "pyautogui"), "more_formats")
    | {"ui_tars_published": "ui_tars_published"},
    "dart_gui.providers": {"osworld-vm": "osworld_vm", "gui-docker-env": "gui_docker_env"},
    "dart_gui.client_protocols": {"openenv": "openenv_port"},
    "dart_gui.exporters": {"dataset": "dataset_export"},
}
"""By group, the names that packages of this project's own folder `integrations` add."""


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """The things of one kind, by name.

    Attributes:
        group: of the entry points with which packages add to them, such as "dart_gui.suites".
        built_in: by name the thing itself, or where it is: "module:attribute", or "module" if a module is the thing.
        checks: what a thing from outside must hold to be of this kind, tried in order. `has` and `called_with` make
            such checks.
    """

    kind: str
    group: str
    built_in: Mapping[str, str | T]
    checks: tuple[Check, ...] = ()

    def get(self, name: str) -> T:
        """Return what a name stands for: a built-in thing, an entry point or "module:Class" (maybe of a file here).

        Raises:
            UnknownNameError: there is no such name; the message suggests a near one.
            PluginError: what it names cannot be used.
        """
        claims = _entry_points().get(self.group, {}).get(name, ())
        if name in self.built_in:
            if claims:
                raise PluginError(
                    f"the package {_package(claims[0])!r} adds the {self.kind} {name!r}, which is built in: "
                    f"rename its entry point in [{self.group}], or uninstall it"
                )
            thing = self.built_in[name]
            return cast(T, _load(thing)) if isinstance(thing, str) else thing
        if len(claims) > 1:
            both = " and ".join(sorted(repr(_package(claim)) for claim in claims))
            raise PluginError(
                f"the packages {both} both add the {self.kind} {name!r}: uninstall one of them, "
                f"or name the class itself, such as {min(claim.value for claim in claims)!r}"
            )
        if claims:
            value, package = claims[0].value, _package(claims[0])
            asked = f"the {self.kind} {name!r} of the package {package!r} ({value})"
            return self._checked(asked, value, f"mend the package, or `pip uninstall {package}`")
        if folder := INTEGRATIONS.get(self.group, {}).get(name.partition(":")[0]):
            raise UnknownNameError(
                f"the {self.kind} {name!r} is of a package that is not installed: `{integration(folder)}`"
            )
        if ":" in name:
            otherwise = "run from its directory or install its package"
            advice = suggest(name.partition(":")[0], self.names(), otherwise=otherwise)
            return self._checked(f"the {self.kind} {name!r}", name, advice)
        hint = suggest(name, self.names())
        raise UnknownNameError(f"unknown {self.kind} {name!r}; {hint} (one of your own is `module:Class`)")

    def names(self) -> list[str]:
        """All names, the built-in ones first; of a plug-in nothing is imported."""
        return list(dict.fromkeys([*self.built_in, *sorted(_entry_points().get(self.group, {}))]))

    def describe(self) -> dict[str, str]:
        """By name, where it comes from: "built in", or the packages that add it."""
        added = _entry_points().get(self.group, {})
        return {
            name: ", ".join(f"package {_package(claim)}" for claim in added.get(name, ())) or "built in"
            for name in self.names()
        }

    def _checked(self, asked: str, value: str, advice: str) -> T:
        try:
            found = _load(value)
        except (Exception, SystemExit) as error:  # the code of others may raise anything while it is imported
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise PluginError(f"{asked} cannot be imported: {why}; {advice}") from error
        for check in self.checks:
            reason = check(found)
            if reason is not None:
                raise PluginError(
                    f"{asked} cannot be used: it {reason}; {page('guides/plugins')} has an example to copy"
                )
        return cast(T, found)


def has(*methods: str, **called: tuple[str, ...]) -> Check:
    """The check that an object has these methods, and that each of `called` can be called with those arguments."""

    def check(found: Any) -> str | None:
        missing = [method for method in (*methods, *called) if _member(found, method) is None]
        if missing:
            return f"lacks {' and '.join(missing)}"
        for method, arguments in called.items():
            unbound = isinstance(found, type) and inspect.isfunction(_member(found, method))
            reason = called_with(*(("self", *arguments) if unbound else arguments))(getattr(found, method))
            if reason is not None:
                return f"has a {method} that {reason}"
        return None

    return check


def _member(found: Any, name: str) -> Any:
    """Return what an object or the instances of a class have under a name; a class itself can always be called."""
    if not isinstance(found, type):
        return getattr(found, name, None)
    return next((vars(base)[name] for base in found.__mro__ if name in vars(base)), None)


def called_with(*positional: str, keywords: tuple[str, ...] = ()) -> Check:
    """Return a check that an object can be called with `count` positional arguments and these keywords."""
    wanted = f"({', '.join([*positional, *(f'{name}=' for name in keywords)])})"

    def check(found: Any) -> str | None:
        if not callable(found):
            return "is not a class or function"
        try:
            signature = inspect.signature(found)
        except ValueError:  # written in C: it says nothing of its arguments
            return None
        try:
            signature.bind(*positional, **dict.fromkeys(keywords))
        except TypeError as error:
            return f"is called with {wanted}, but takes {signature}: {error}"
        return None

    return check


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a Python process that must import what this one can, from this one's by default.

    `PYTHONPATH` names the directories of `sys.path` that are not the interpreter's own: scripts and console commands
    put other directories there than `python -m` does, and `module:Class` adds the current one.
    """
    values = dict(os.environ if environment is None else environment)
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own |= {os.path.join(path, "lib-dynload") for path in own}
    paths = [os.path.abspath(path) for path in sys.path if path not in own and os.path.exists(path or ".")]
    given = values.get("PYTHONPATH", "").split(os.pathsep)
    values["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*paths, *filter(None, given)]))
    return values


def _load(value: str) -> Any:
    """The object "module:attribute", or the module "module"; modules of the current directory are found as well."""
    module, _, attribute = value.partition(":")
    if module == "__main__":
        raise ImportError("__main__ is another module in each process: put the class in a file of its own")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    found = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        if not hasattr(found, part):
            public = [name for name in dir(found) if not name.startswith("_")]
            raise AttributeError(f"{value.partition(':')[0]} has no {part}; {suggest(part, public)}")
        found = getattr(found, part)
    return found


def _entry_points() -> Mapping[str, Mapping[str, tuple[metadata.EntryPoint, ...]]]:
    if _LABORATORY.is_dir() and str(_LABORATORY.parent) not in sys.path:
        sys.path.append(str(_LABORATORY.parent))  # its modules are `dart_lab...`
    return _scan((*sys.path, str(_LABORATORY)))


@functools.lru_cache(maxsize=4)
def _scan(path: tuple[str, ...]) -> Mapping[str, Mapping[str, tuple[metadata.EntryPoint, ...]]]:
    """By group and name, the entry points of the packages on a path; 2-10 ms for 200 packages.

    Only the packages whose file mentions this project are parsed: `metadata.entry_points` would take twice as long.
    Of a distribution that stands twice on the path the first counts, as it does for imports.
    """
    groups: dict[str, dict[str, tuple[metadata.EntryPoint, ...]]] = {}
    seen: set[str] = set()
    for distribution in metadata.distributions(path=list(path)):
        if "[dart_gui." not in (distribution.read_text("entry_points.txt") or "") or distribution.name in seen:
            continue
        seen.add(distribution.name)
        for point in distribution.entry_points:
            names = groups.setdefault(point.group, {})
            names[point.name] = tuple(sorted((*names.get(point.name, ()), point), key=_package))
    return groups


def _package(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module
