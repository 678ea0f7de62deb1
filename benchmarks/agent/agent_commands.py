"""The commands `dart-agent bench ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.gym.gym_commands import JsonOption, finish

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure on this machine; comparisons are ratios from one run."""


@app.command()
def parse(
    json: JsonOption = None,
    count: Annotated[int, typer.Option(min=1, help="Responses in a round.")] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="Of each parser; the best counts.")] = 5,
    alone: Annotated[bool, typer.Option("--alone", help="Not beside the package ui-tars.")] = False,
) -> None:
    """Responses a second on one core in every format, UI-TARS beside the published parser (seconds)."""
    from benchmarks.agent.parse_bench import measure

    finish(measure(count, rounds, published=not alone), json)
