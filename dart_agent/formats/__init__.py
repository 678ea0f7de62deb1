"""Action formats: how models of each family write actions. `get_format(name)` finds one."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from dart_agent.formats.base import ActionFormat, ParsedResponse, ParseError
from dart_agent.formats.ui_tars import UITarsFormat
from dart_gym.errors import ConfigurationError

__all__ = ["ActionFormat", "ParseError", "ParsedResponse", "formats", "get_format", "register_format"]

_FORMATS: dict[str, Callable[[], ActionFormat]] = {UITarsFormat.name: UITarsFormat}


def formats() -> list[str]:
    """Names of all known formats."""
    return sorted(_FORMATS)


def get_format(name: str) -> ActionFormat:
    """The format of this name.

    Raises:
        ConfigurationError: unknown; the message lists what is known.
    """
    if name not in _FORMATS:
        near = difflib.get_close_matches(name, _FORMATS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigurationError(f"unknown action format {name!r}; {hint}known: {', '.join(formats())}")
    return _FORMATS[name]()


def register_format(name: str, factory: Callable[[], ActionFormat]) -> None:
    """Make an own format known, so that `get_format(name)` returns `factory()`."""
    _FORMATS[name] = factory
