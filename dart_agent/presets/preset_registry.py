"""Presets by name. A new one is an entry in `PRESETS` of a file in this folder; nothing else names it."""

import importlib
import pkgutil
from functools import cache
from pathlib import Path

from dart_agent.presets.preset import Preset
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.suggestions import suggest

_NO_PRESETS = {"preset", "preset_registry", "preset_check"}


@cache
def presets() -> dict[str, Preset]:
    """All presets by name, in alphabetical order."""
    found: dict[str, Preset] = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name not in _NO_PRESETS:
            found |= {one.name: one for one in importlib.import_module(f"{__package__}.{module.name}").PRESETS}
    return dict(sorted(found.items()))


def get_preset(name: str) -> Preset:
    """The preset of a name, in any case.

    Raises:
        ConfigurationError: there is none; the message suggests a near one.
    """
    known = presets()
    if name.lower() not in known:
        raise ConfigurationError(f"unknown preset {name!r}; {suggest(name.lower(), list(known))}")
    return known[name.lower()]
