"""The registry of formats. A new one is one file in this package: a class under `@register`.

A name may carry a variant: `get("ui_tars:doubao")` is `get("ui_tars", dialect="doubao")`, so that a configuration
file can name either.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import dart_agent.formats
from dart_agent.formats.grammar.action_format import ActionFormat
from dart_gym.core.errors import ConfigurationError

Factory = Callable[..., ActionFormat]
F = TypeVar("F", bound=Factory)


@dataclass(frozen=True, slots=True)
class _Entry:
    factory: Factory
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_FORMATS: dict[str, _Entry] = {}


def register(name: str, variants: Mapping[str, Mapping[str, Any]] | None = None) -> Callable[[F], F]:
    """Make a class (or function) known as the format of a name.

    Args:
        name: for `get`.
        variants: by name, the arguments that a variant stands for.
    """

    def add(factory: F) -> F:
        register_format(name, factory, variants)
        return factory

    return add


def register_format(name: str, factory: Factory, variants: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Make an own format known, so that `get(name)` returns `factory()`."""
    _FORMATS[name] = _Entry(factory, dict(variants or {}))


def formats() -> list[str]:
    """Names of all known formats, without variants."""
    _load()
    return sorted(_FORMATS)


def variants(name: str) -> list[str]:
    """Names of the variants of a format. Raises `ConfigurationError` for an unknown format."""
    return sorted(_entry(name).variants)


def get(name: str, **options: Any) -> ActionFormat:
    """The format of a name, or of "name:variant".

    Args:
        name: see `formats` and `variants`.
        options: arguments of the format's class.

    Raises:
        ConfigurationError: unknown name, variant or option; the message lists what is known.
    """
    base, colon, variant = name.partition(":")
    entry = _entry(base)
    if colon and variant not in entry.variants:
        raise ConfigurationError(_unknown(f"variant of the format {base!r}", variant, entry.variants))
    try:
        return entry.factory(**{**(entry.variants[variant] if colon else {}), **options})
    except TypeError as error:
        raise ConfigurationError(f"format {base!r}: {error}") from error


def _entry(name: str) -> _Entry:
    _load()
    if name not in _FORMATS:
        raise ConfigurationError(_unknown("action format", name, _FORMATS))
    return _FORMATS[name]


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {what} {name!r}; {hint}known: {', '.join(names) or 'none'}"


def _load() -> None:
    """Import the modules of this package, which register what they define."""
    for module in pkgutil.iter_modules(dart_agent.formats.__path__):
        importlib.import_module(f"{dart_agent.formats.__name__}.{module.name}")
