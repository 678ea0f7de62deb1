"""The commands `dart-agent bench ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.gym.gym_commands import JsonOption, finish, progress

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


@app.command()
def grounding(
    json: JsonOption = None,
    seconds: Annotated[float, typer.Option(min=1, help="Processor time of each of three trainings.")] = 120.0,
    screens: Annotated[int, typer.Option(min=4, help="Drawn screens to train on, four elements each.")] = 600,
    held_out: Annotated[int, typer.Option(min=1, help="Other screens to score on, of each of three sizes.")] = 75,
    family: Annotated[str, typer.Option(help="Of the tiny backbone.")] = "qwen2_5_vl",
) -> None:
    """GUI-Actor's head against coordinates in text, trained for the same processor time (minutes)."""
    from benchmarks.agent.grounding_bench import Sizes, measure

    finish(measure(Sizes(seconds, screens, held_out), family, progress), json)
