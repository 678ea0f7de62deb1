"""The commands `dart-train bench ...`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dart_gym.bench.cli import JsonOption, finish

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure on this machine; comparisons are ratios from one run."""


@app.command()
def data(
    json: JsonOption = None,
    rows: Annotated[int, typer.Option(min=1000, help="Trajectories in the run that is leased from.")] = 1_000_000,
    writers: Annotated[int, typer.Option(min=1, help="Processes that record at once.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.1, help="For which they record.")] = 10.0,
    steps: Annotated[int, typer.Option(min=0, help="Of each recorded trajectory.")] = 15,
    leases: Annotated[int, typer.Option(min=1, help="Leases of 64 trajectories.")] = 200,
    database: Annotated[str | None, typer.Option(help="sqlite or mariadb; both if not given.")] = None,
) -> None:
    """Recording, and leasing from a long run, beside selecting the whole run into pandas (minutes)."""
    from dart_train.bench.data import DATABASES, Sizes, measure

    chosen = DATABASES if database is None else (database,)
    sizes = Sizes(rows=rows, writers=writers, seconds=seconds, steps=steps, leases=leases)
    finish(measure(chosen, sizes, progress), json)


def progress(stage: str) -> None:
    """Say what is being measured."""
    print(f"... {stage}", file=sys.stderr, flush=True)
