"""The commands `dart-agent bench ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure on this machine; comparisons are ratios from one run."""


@app.command()
def parse(
    json: Annotated[Path | None, typer.Option("--json", help="Also write the numbers to this file.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Responses in a round.")] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="Of each parser; the best counts.")] = 5,
    alone: Annotated[bool, typer.Option("--alone", help="Not beside the package ui-tars.")] = False,
) -> None:
    """UI-TARS responses a second on one core, beside the published parser (seconds)."""
    from dart_agent.bench.parse import measure

    report = measure(count, rounds, published=not alone)
    report.print(Console())
    if json is not None:
        report.write(json)
