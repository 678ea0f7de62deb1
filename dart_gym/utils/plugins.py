"""Classes and functions of other people, by "module:name": policies and trainers of one's own."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from dart_gym.core.errors import ConfigurationError


def import_object(what: str, module: str, name: str) -> Any:
    """The object of a module; modules of the working directory are found as well.

    Args:
        what: how the user asked for it, which begins the message of an error.
        module: dotted name.
        name: of the object in it.

    Raises:
        ConfigurationError: there is no such module, or nothing of that name in it.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{what}: {error}; run from its directory or install it") from error
    except AttributeError as error:
        raise ConfigurationError(f"{what}: the module {module} has no {name}") from error
