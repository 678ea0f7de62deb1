"""The commands `dart-train bench ...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True)

JsonOption = Annotated[Path | None, typer.Option("--json", help="Also write the numbers to this file.")]


@app.callback()
def bench() -> None:
    """Measure on this machine; comparisons are ratios from one run."""


@app.command()
def efficiency(
    json: JsonOption = None,
    plots: Annotated[Path | None, typer.Option(help="Also draw pictures into this directory.")] = None,
    hours: Annotated[float, typer.Option(help="Simulated hours of every run, after the first.")] = 10.0,
    seeds: Annotated[int, typer.Option(help="Every simulated run is repeated with so many seeds.")] = 3,
) -> None:
    """What decoupling is worth: coupled, task-wise and DART rollouts, simulated in the published setting (minutes)."""
    from dart_train.bench import efficiency as bench
    from dart_train.bench.study import Length

    found = bench.simulate(Length(hours=hours, seeds=tuple(range(seeds))), progress)
    console = Console()
    bench.print_tables(found, console)
    if plots is not None:
        bench.write_plots(found, plots)
    report = bench.report(found)
    report.print(console)
    if json is not None:
        report.write(json)


def progress(stage: str) -> None:
    """Say what is being measured."""
    print(f"... {stage}", file=sys.stderr, flush=True)
