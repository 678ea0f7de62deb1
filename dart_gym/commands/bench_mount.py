"""Mounts the benchmarks of a checkout under `dart-gym bench`, `dart-agent bench` and `dart-train bench`.

The folder `benchmarks` lies beside the packages in a checkout and is not in the wheel: an installed program says so.
"""

import importlib
import sys
from pathlib import Path

import typer

from dart_gym.core.errors import ConfigurationError

CHECKOUT = Path(__file__).parents[2]


def mount_benchmarks(app: typer.Typer, module: str) -> None:
    """Add the command group `bench`: the `app` of a module of `benchmarks`, such as "benchmarks.gym.gym_commands"."""
    if (CHECKOUT / "benchmarks" / "__init__.py").is_file():
        if str(CHECKOUT) not in sys.path:
            sys.path.append(str(CHECKOUT))
        app.add_typer(importlib.import_module(module).app, name="bench")
        return
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("bench", help="Measure on this machine (from a checkout).", context_settings=settings)(_absent)


def _absent() -> None:
    raise ConfigurationError(
        "the benchmarks are not part of the installed package; next step: clone the repository, "
        "`pip install -e .` there and run the command again"
    )
