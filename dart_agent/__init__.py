"""Policies for GUI environments: model text <-> typed actions, prompts, engines. Imports dart_gym only."""

import importlib
from typing import Any

from dart_gym.utils.version import VERSION as __version__  # noqa: F401

_LATER = {"TextActions": "dart_agent.text_actions"}  # imported when first used: most of the package needs no Gymnasium


def __getattr__(name: str) -> Any:
    """Return what is imported when it is first used."""
    if name not in _LATER:
        raise AttributeError(f"module 'dart_agent' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
