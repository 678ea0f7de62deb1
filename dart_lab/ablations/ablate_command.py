"""`dart-train ablate`: the same run with one thing changed at a time, on several seeds, as a table and a picture."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from dart_train.commands.options import DEFAULT_RUNS_DIR, ConfigPath, Overrides, RunsDir


def ablate(
    config: ConfigPath,
    switch: Annotated[
        list[str],
        typer.Option(
            "--switch",
            metavar="NAME=VALUES",
            help="such as pool=on,off or trainer.beta=0,0.1; 'tis=on,off staleness=1,3' is every combination",
        ),
    ],
    overrides: Overrides = None,
    seeds: Annotated[int, typer.Option(min=1, help="runs of every variant")] = 5,
    budget: Annotated[
        str, typer.Option(metavar="N", help="of every run: 2000rollouts, 20minutes or 12000actions")
    ] = "2000rollouts",
    side_by_side: Annotated[int, typer.Option(min=1, help="runs at the same time")] = 1,
    name: Annotated[str | None, typer.Option(help="directory below --runs-dir; ablation-CONFIG if not given")] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> None:
    """Compare variants of CONFIG; the same command resumes an interrupted comparison."""
    from dart_lab.ablations import ablation, ablation_table
    from dart_train.config.run_config import load_config
    from dart_train.preflight.problems import refuse
    from dart_train.preflight.run_check import check_run
    from dart_train.run.run_directory import RunDirectory

    axis, limit = ablation.read_budget(budget)
    variants = ablation.variants_of(switch)
    planned = ablation.planned_runs(config, overrides or [], variants, seeds=seeds, budget=limit)
    variants_planned = {run.variant: run.config for run in planned}
    refuse(f"{name}: {text}" for name, one in variants_planned.items() for text in check_run(one, runs_dir).problems)
    root = runs_dir / (name or f"ablation-{load_config(config, overrides).name}")
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{len(planned)} runs of {len({run.variant for run in planned})} variants below {root}")
    crashed = ablation.run_all(planned, root, side_by_side=side_by_side, say=console.print)
    outcomes = [
        ablation_table.outcome_of(
            run.variant, run.config.seed, RunDirectory(root / run.label), crashed.get(run.label, "")
        )
        for run in planned
    ]
    console.print(ablation_table.write(root, outcomes, base=ablation.BASE, by=axis), markup=False)
    console.print(f"Table, values and picture: {root / 'ablation.md'}, .json, .svg")
    if crashed:
        raise typer.Exit(1)
