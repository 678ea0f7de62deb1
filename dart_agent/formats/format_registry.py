"""Formats by name. A new one is one file in this folder, named as the format, with its class as `FORMAT`.

A name may carry a variant: `get_format("ui_tars:doubao")` is `get_format("ui_tars", dialect="doubao")`, so that a
configuration file can name either. Formats of installed packages and `module:Class` are named in the same way.
"""

import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dart_agent.formats.grammar.action_format import ActionFormat
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.suggestions import suggest
from dart_gym.utils.plugins import Registry, has

_NO_FORMATS = {"format_registry", "ui_tars_prompts"}
_HERE = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if not module.ispkg]

FORMATS: Registry[Callable[..., ActionFormat]] = Registry(
    "action format",
    "dart_gui.formats",
    {name: f"{__package__}.{name}:FORMAT" for name in _HERE if name not in _NO_FORMATS},
    (has(space=("screen",), parse=("response", "screen"), format=("actions", "screen", "thought"), describe=()),),
)


def formats() -> list[str]:
    """Names of all formats, those of installed packages included, without variants."""
    return sorted(FORMATS.names())


def variants(name: str) -> list[str]:
    """Names of the variants of a format. Raises `ConfigurationError` for an unknown format."""
    return sorted(getattr(FORMATS.get(name), "variants", ()))


def get_format(name: str, **options: Any) -> ActionFormat:
    """The format of a name, or of "name:variant".

    Args:
        name: see `formats` and `variants`; "module:Class" or "module:Class:variant" for one of one's own.
        options: arguments of the format's class.

    Raises:
        ConfigurationError: unknown name, variant or option; the message lists what is known.
    """
    parts = name.split(":")
    length = 1 if parts[0] in FORMATS.names() else 2
    base, variant = ":".join(parts[:length]), ":".join(parts[length:])
    factory = FORMATS.get(base)
    known = getattr(factory, "variants", {})
    if variant and variant not in known:
        hint = suggest(variant, sorted(known))
        raise ConfigurationError(f"unknown variant of the format {base!r} {variant!r}; {hint}")
    try:
        return factory(**{**known.get(variant, {}), **options})
    except TypeError as error:
        raise ConfigurationError(f"format {base!r}: {error}") from error
