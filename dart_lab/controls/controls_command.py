"""`dart-train controls`: repeats a finished run with shuffled rewards."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from dart_train.commands.options import DEFAULT_RUNS_DIR, ConfigPath, Name, Overrides, RunsDir, load
from dart_train.run.run_directory import explained_file_errors


def controls(
    config: ConfigPath,
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    plain: Annotated[bool, typer.Option("--plain", help="lines instead of a live panel")] = False,
) -> None:
    """Repeat a finished run with shuffled rewards, which must not learn, and add that to its report."""
    from dart_lab.controls import shuffled_control
    from dart_train.launch import pipeline
    from dart_train.preflight.problems import refuse
    from dart_train.preflight.run_check import check_run

    loaded = load(config, overrides, name)
    refuse(check_run(loaded, runs_dir, occupied=False).problems)
    with explained_file_errors(runs_dir / loaded.name):
        pipeline.say_result(shuffled_control.main(loaded, runs_dir, plain=plain), Console())
