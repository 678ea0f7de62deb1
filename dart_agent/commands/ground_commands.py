"""Commands of `dart-agent ground`: score a grounder on a set of ScreenSpot's layout."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dart_agent.grounding.grounding_scores import Accuracy, evaluate_grounder
from dart_agent.grounding.screenspot import read_screenspot
from dart_agent.grounding.text_grounder import EngineGrounder
from dart_agent.policies.policy_factory import open_engine
from dart_gym.core.errors import ConfigurationError

app = typer.Typer(
    help="Find elements that are described in words.", no_args_is_help=True, callback=lambda: None
)  # a group, though it has one command
console = Console()


@app.command("eval")
def evaluate_command(
    path: Annotated[Path, typer.Argument(metavar="SET", help="A file or directory in ScreenSpot's layout.")],
    model: Annotated[Path, typer.Option(help="Model directory.")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    text: Annotated[bool, typer.Option("--text", help="Ask for coordinates in text instead of the head.")] = False,
    engine_url: Annotated[str | None, typer.Option(help="With --text: a running engine.")] = None,
    relative: Annotated[int | None, typer.Option(help="With --text: size of the model's coordinates.")] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Candidates for each item.")] = 1,
    output: Annotated[Path | None, typer.Option("--json", help="Also write the numbers to this file.")] = None,
) -> None:
    """Accuracy by application, platform, kind and size, with 95 % intervals."""
    items, problems = read_screenspot(path)
    for problem in problems:
        console.print(f"left out: {problem}", style="red", markup=False, highlight=False)
    if not items:
        raise ConfigurationError(f"{path} holds no item that can be used")

    async def score() -> list[Accuracy]:
        if not text:
            from dart_agent.grounding.pointer_model import PointerGrounder, PointerModel

            return await evaluate_grounder(PointerGrounder(PointerModel(model, device=device)), items, k)
        engine = open_engine(model, engine_url)
        try:
            return await evaluate_grounder(EngineGrounder.from_dir(engine, model, relative=relative), items, k)
        finally:
            await engine.close()

    found = asyncio.run(score())
    table = Table("", "", "items", "accuracy", "95 %", f"any of {k}", box=None)
    for row in found:
        shares = f"{row.rate:.3f}", f"{row.low:.3f} to {row.high:.3f}", f"{row.hits_of_k / row.items:.3f}"
        table.add_row(row.group, row.value, str(row.items), *shares)
    console.print(table)
    if output is not None:
        output.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")
