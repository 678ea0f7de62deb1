"""`dart-gym evaluator install`: OSWorld's evaluator in an environment of its own."""

from pathlib import Path
from typing import Annotated

import typer

from dart_gym.tasks.evaluation import evaluator_environment

app = typer.Typer(help="OSWorld's own metrics and getters, in an environment of their own.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `install` a command of its own name."""


@app.command()
def install(
    location: Annotated[
        Path | None, typer.Option(help="The directory; by default DART_GYM_EVALUATOR, or one of this user.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds for one answer of the package index; pip's own if not given.")
    ] = None,
) -> None:
    """Install the evaluator (about 1.3 GB, once); returns at once when it is there."""
    found = evaluator_environment.install(location, timeout)
    print(f"{evaluator_environment.EVALUATOR} is installed in {found.root}")
