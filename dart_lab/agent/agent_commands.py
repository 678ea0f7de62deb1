"""The commands `dart-agent bench ...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dart_gym.commands.json_output import JsonOption
from dart_lab.gym.gym_commands import finish, progress

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True)
GROUNDING_DATA = str(Path(__file__).parents[2] / "integrations" / "grounding_data")
"""The package that explores; a checkout need not have it installed."""


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
    from dart_lab.agent.parse_bench import measure

    finish(measure(count, rounds, published=not alone), json)


@app.command()
def grounding(
    json: JsonOption = None,
    seconds: Annotated[float, typer.Option(min=1, help="Processor time of each of three trainings.")] = 120.0,
    screens: Annotated[int, typer.Option(min=4, help="Drawn screens to train on, four elements each.")] = 600,
    held_out: Annotated[int, typer.Option(min=1, help="Other screens to score on, of each of three sizes.")] = 75,
    steps: Annotated[int, typer.Option(min=0, help="Actions of each run on real desktops; 0: none of these.")] = 20,
) -> None:
    """GUI-Actor's head against coordinates in text, for as long; then `explorer` and `novel`, small (minutes)."""
    from dart_lab.agent.grounding_bench import Sizes, measure

    report = measure(Sizes(seconds, screens, held_out), progress)
    if steps:
        sys.path.append(GROUNDING_DATA)
        from dart_lab.agent import explorer_bench, novel_bench

        few = novel_bench.Sizes(("mousepad", "zenity-list"), ("galculator",), steps, seconds, seconds / 2)
        explored = explorer_bench.measure(["galculator"], steps, 2, False, progress, ["random"])
        for part in (explored, novel_bench.measure(few, progress)):
            report.keys |= part.keys
            report.aims |= part.aims
            report.notes += part.notes
    finish(report, json)


@app.command()
def explorer(
    names: Annotated[list[str] | None, typer.Argument(help="Applications; three bundled ones without.")] = None,
    json: JsonOption = None,
    steps: Annotated[int, typer.Option(min=1, help="Actions and resets of each run.")] = 40,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each way in each application.")] = 5,
    parts: Annotated[bool, typer.Option("--parts", help="Also without each part of the explorer.")] = False,
) -> None:
    """The explorer against chance and breadth-first on real applications (half an hour)."""
    sys.path.append(GROUNDING_DATA)
    from dart_lab.agent.explorer_bench import measure

    finish(measure(names or [], steps, seeds, parts, progress), json)


@app.command()
def novel(
    json: JsonOption = None,
    steps: Annotated[int, typer.Option(min=1, help="Actions and resets in each application.")] = 60,
    seconds: Annotated[float, typer.Option(min=1, help="Processor time of the first training.")] = 900.0,
    continued: Annotated[float, typer.Option(min=1, help="Processor time of the second.")] = 300.0,
) -> None:
    """A tiny grounder before and after it is continued on what was explored of novel applications (half an hour)."""
    sys.path.append(GROUNDING_DATA)
    from dart_lab.agent.novel_bench import Sizes, measure

    finish(measure(Sizes(steps=steps, seconds=seconds, continued=continued), progress), json)


@app.command()
def collector(
    names: Annotated[list[str] | None, typer.Argument(help="Applications; all bundled ones without.")] = None,
    json: JsonOption = None,
    steps: Annotated[int, typer.Option(min=1, help="Actions and resets in each application.")] = 40,
    pairs: Annotated[int, typer.Option(min=0, help="Most pairs that are checked by pressing.")] = 2000,
    out: Annotated[Path | None, typer.Option(help="Also write the set: train and novel.")] = None,
) -> None:
    """Collect pairs of applications, checked by pressing what was meant (half an hour)."""
    sys.path.append(GROUNDING_DATA)
    from dart_lab.agent.collector_bench import measure

    finish(measure(names or [], steps, pairs, out), json)


@app.command()
def replay(
    suites: Annotated[list[str] | None, typer.Argument(help="Suites; all bundled ones without.")] = None,
    json: JsonOption = None,
    tasks: Annotated[int, typer.Option(min=1, help="Most tasks of each suite.")] = 1000,
    steps: Annotated[int, typer.Option(min=2, help="Most actions of an episode.")] = 6,
) -> None:
    """How often a replayed episode shows the recorded screens, where it could be forked (minutes)."""
    import asyncio

    from dart_gym.tasks.catalog.registry import SUITES
    from dart_lab.agent.replay_bench import measure

    finish(asyncio.run(measure(suites or sorted(SUITES.built_in), tasks, steps, progress)), json)
