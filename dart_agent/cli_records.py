"""Commands of `dart-agent` on recorded episodes: compare two evaluations, look at a trajectory, export."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dart_agent.evaluation.compare import compare
from dart_agent.evaluation.directory import read_manifest, read_outcomes
from dart_agent.evaluation.tables import comparison_lines

console = Console()


class ExportKind(StrEnum):
    """What a recorded evaluation can become."""

    OSWORLD = "osworld"
    DATASET = "dataset"


def compare_command(
    a: Annotated[Path, typer.Argument(help="Directory of an evaluation (dart-agent eval --out).")],
    b: Annotated[Path, typer.Argument(help="Directory of another one, of the same tasks and seeds.")],
) -> None:
    """Say whether policy B is better than policy A: a paired test over the tasks that both played."""
    comparison = compare(read_outcomes(a), read_outcomes(b))
    names = [str(read_manifest(path).get("policy", path.name)) for path in (a, b)]
    if names[0] == names[1]:
        names = [a.name, b.name] if a.name != b.name else ["A", "B"]
    for line in comparison_lines(comparison, *names):
        console.print(line, markup=False, highlight=False)


def mount(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("compare")(compare_command)
