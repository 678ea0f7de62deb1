"""Processes that run a module of the laboratory, which is not installed: their Python must be told where it lies."""

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of the laboratory, with `own_environment`, in whatever directory."""
    return [sys.executable, "-m", module, *arguments]


def own_environment() -> dict[str, str]:
    """Return this process's environment, with the checkout as the first place of modules."""
    places = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
