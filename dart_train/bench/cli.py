"""The commands `dart-train bench ...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dart_gym.bench.report import Report

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True)

JsonOption = Annotated[Path | None, typer.Option("--json", help="Also write the numbers to this file.")]


@app.callback()
def bench() -> None:
    """Measure on this machine; comparisons are ratios from one run."""


@app.command()
def calibrate(
    hours: Annotated[float, typer.Option(help="Simulated hours of every run, after the first.")] = 20.0,
) -> None:
    """How well the simulated coupled loop fits the paper's, by the two numbers that nobody published."""
    from dart_train.bench.study import Length, Runner, calibrate
    from dart_train.bench.workload import Setting

    with Runner(Length(hours=hours)) as runner:
        found = calibrate(runner, Setting())
    for (tail, train_s), value in sorted(found.items(), key=lambda item: item[1]):
        print(f"misfit {value:.3f}  tail {tail:g}  train_s_per_action {train_s:g}")


@app.command()
def efficiency(
    json: JsonOption = None,
    plots: Annotated[Path | None, typer.Option(help="Also draw pictures into this directory.")] = None,
    hours: Annotated[float, typer.Option(help="Simulated hours of every run, after the first.")] = 10.0,
    seeds: Annotated[int, typer.Option(help="Every simulated run is repeated with so many seeds.")] = 3,
    real: Annotated[bool, typer.Option("--real", help="On real desktops of this machine instead.")] = False,
    repeat: Annotated[int, typer.Option(help="With --real: runs of each mode.")] = 3,
    config: Annotated[Path, typer.Option(help="With --real: what is run.")] = Path("configs/efficiency.yaml"),
    rollouts: Annotated[int, typer.Option(help="With --real: rollouts of each run.")] = 120,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="With --real: override of its settings.")
    ] = None,
) -> None:
    """What decoupling is worth: coupled, task-wise and DART rollouts, simulated in the published setting (minutes)."""
    if real:
        from dart_train.bench.real import measure
        from dart_train.config import load_config

        finish(measure(load_config(config, overrides), rollouts=rollouts, repeat=repeat, progress=progress), json)
        return
    from dart_train.bench import efficiency as bench
    from dart_train.bench.study import Length

    found = bench.simulate(Length(hours=hours, seeds=tuple(range(seeds))), progress)
    console = Console()
    bench.print_tables(found, console)
    if plots is not None:
        bench.write_plots(found, plots)
    finish(bench.report(found), json)


def finish(report: Report, json: Path | None) -> None:
    """Print a report, and write it where asked."""
    report.print(Console())
    if json is not None:
        report.write(json)


def progress(stage: str) -> None:
    """Say what is being measured."""
    print(f"... {stage}", file=sys.stderr, flush=True)
