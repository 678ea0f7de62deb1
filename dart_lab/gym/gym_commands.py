"""The commands `dart-gym bench ...`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dart_gym.commands.json_output import JsonOption, write_json
from dart_lab.reporting.report import Report

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure on this machine; comparisons are ratios from one run."""


@app.command()
def cluster(
    json: JsonOption = None,
    desync_steps: Annotated[int, typer.Option(help="Steps of 256 drawn desktops, every reply checked.")] = 100_000,
    seconds: Annotated[float, typer.Option(help="Of each of three ways to drive 8 real desktops.")] = 60.0,
) -> None:
    """Steps over a websocket, many desktops on one server, and the cost of a barrier (about six minutes)."""
    from dart_lab.gym.cluster_bench import Sizes, measure

    finish(asyncio.run(measure(Sizes(desync_steps=desync_steps, seconds=seconds), progress)), json)


@app.command()
def desktop(json: JsonOption = None) -> None:
    """A step, a reset and an idle desktop at 1920x1080, beside OSWorld's way (about a minute)."""
    from dart_lab.gym.desktop_bench import measure

    finish(asyncio.run(measure(progress)), json)


@app.command()
def difficulty(
    names: Annotated[list[str], typer.Argument(metavar="SUITE|TASK...", help="suites, or tasks such as drawn/menus")],
    seeds: Annotated[int, typer.Option(min=1, help="held-out seeds of every task and policy")] = 50,
    difficulty: Annotated[str | None, typer.Option(help="also keep them with this suite, or in this file")] = None,
    json: JsonOption = None,
) -> None:
    """Measure policies that do not look: random actions, the best constant click, another seed's actions."""
    from dart_agent.evaluation.difficulty import write_difficulty
    from dart_gym.tasks.catalog.registry import is_suite, task_ids
    from dart_lab.gym.difficulty_bench import measure

    tasks = [task for name in names for task in (task_ids(name) if is_suite(name) else [name])]
    rows = asyncio.run(measure(tasks, seeds, progress))
    typer.echo("| task | actions | random | constant click | another seed's actions |\n|---|---|---|---|---|")
    for row in rows:
        shares = " | ".join(f"{100 * row[name]:.0f} %" for name in ("random", "click", "replay"))
        typer.echo(f"| {row['task']} | {row['actions']:.1f} | {shares} |")
    if difficulty is not None:
        for name in ("random", "click", "replay"):
            counts = {row["task"]: (round(seeds * row[name]), seeds) for row in rows}
            typer.echo(f"{write_difficulty(difficulty, f'blind {name}', counts)}: blind {name}")
    write_json(json, rows)


def progress(stage: str) -> None:
    """Say what is being measured."""
    print(f"... {stage}", file=sys.stderr, flush=True)


@app.command()
def reset(json: JsonOption = None) -> None:
    """Resets of a server with and without spare desktops (about three minutes)."""
    from dart_lab.gym.reset_bench import measure

    finish(asyncio.run(measure(progress)), json)


@app.command()
def settle(
    json: JsonOption = None,
    clicks: Annotated[int, typer.Option(min=1, help="In each program.")] = 200,
    load: Annotated[int, typer.Option(min=0, help="How many busy processes run beside the desktop.")] = 0,
    programs: Annotated[list[str], typer.Option("--program", help="files, editor, menu, browser or office.")] = [  # noqa: B006
        "files"
    ],
) -> None:
    """Right clicks in real programs: how many are reported as settled too early (about eight minutes a program)."""
    from dart_lab.gym.settle_bench import PROGRAMS, measure

    for name in programs:
        if name not in PROGRAMS:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(PROGRAMS)}", param_hint="--program")
    finish(asyncio.run(measure(programs, clicks, load, progress)), json)


@app.command()
def sites(
    json: JsonOption = None,
    desktops: Annotated[int, typer.Option(min=1, help="How many play at once.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Episodes of each desktop and way.")] = 3,
) -> None:
    """Episodes on mock sites beside the same pages as local files, and the reset of a site (about five minutes)."""
    from dart_lab.gym.site_bench import measure

    finish(asyncio.run(measure(desktops, rounds, progress)), json)


@app.command()
def sources(
    json: JsonOption = None, bundles: Annotated[int, typer.Option(min=1, help="How many are imported.")] = 10_000
) -> None:
    """An imported suite of 10,000 bundles: import, list, draw (about a minute)."""
    from dart_lab.gym.sources_bench import measure

    finish(measure(bundles, progress), json)


def finish(report: Report, json: Path | None) -> None:
    """Print a report, and write it where asked."""
    report.print(Console())
    if json is not None:
        report.write(json)
