"""Commands of `dart-agent ground`: train a grounder on a set of ScreenSpot's layout, and score one."""

import asyncio
import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dart_agent.engines.base.engine import ModelEngine
from dart_agent.grounding.attention_regions import JUDGED, THRESHOLD
from dart_agent.grounding.candidate import Grounder
from dart_agent.grounding.grounding_scores import Answer, accuracies, answers_of
from dart_agent.grounding.hits_page import hits_page
from dart_agent.grounding.screenspot import GroundingItem, read_screenspot
from dart_agent.grounding.text_grounder import EngineGrounder
from dart_agent.grounding.verifier import VerifiedGrounder, Verifier
from dart_agent.policies.policy_factory import open_engine
from dart_gym.commands.json_output import JsonOption, write_json
from dart_gym.commands.packaged_commands import mount_package
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils.shown_text import printable
from dart_gym.utils.waits import waiting_for

app = typer.Typer(help="Find elements that are described in words.", no_args_is_help=True)
console = Console()
TOLD_EVERY = 50
Items = Annotated[Path, typer.Argument(metavar="SET", help="A file or directory in ScreenSpot's layout.")]


def _usable(path: Path) -> list[GroundingItem]:
    """Return the items of a set that can be used, and print the others.

    Raises:
        ConfigurationError: if no item can be used.
    """
    items, problems = read_screenspot(path)
    for problem in problems:
        console.print(f"left out: {printable(problem)}", style="red", markup=False, highlight=False)
    if not items:
        raise ConfigurationError(f"{path} holds no item that can be used")
    return items


@app.command("train")
def train_command(
    path: Items,
    model: Annotated[Path, typer.Option(help="Model directory; one without a head gets one.")],
    out: Annotated[Path, typer.Option(help="Directory that is written.")],
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 1000,
    batch_size: Annotated[int, typer.Option(min=1, help="Items in a step.")] = 8,
    learning_rate: Annotated[float, typer.Option(help="Published: 1e-4 for the head, 5e-6 for everything.")] = 1e-4,
    whole: Annotated[bool, typer.Option("--whole", help="Train everything, not the head alone.")] = False,
    seed: Annotated[int, typer.Option(help="Of the head's first weights and the order of items.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Teach a model to point at what is described: its head alone, or all of its weights."""
    import torch

    from dart_agent.grounding.pointer_model import PointerModel
    from dart_agent.grounding.pointer_training import train_pointer

    items = _usable(path)
    if out.exists():
        raise ConfigurationError(f"{out} exists already: choose another directory")
    torch.manual_seed(seed)
    pointer = PointerModel(model, begin="", device=device, dtype="float32")

    def tell(step: int, loss: float) -> None:
        if step % TOLD_EVERY == 0 or step == steps:
            console.print(f"{step}/{steps} steps, loss {loss:.3f}", highlight=False)

    train_pointer(
        pointer,
        items,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        whole=whole,
        seed=seed,
        on_step=tell,
    )
    console.print(f"written: {pointer.save(out)}", highlight=False, soft_wrap=True)


@app.command("eval")
def evaluate_command(
    path: Items,
    model: Annotated[Path, typer.Option(help="Model directory.")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    text: Annotated[bool, typer.Option("--text", help="Ask for coordinates in text instead of the head.")] = False,
    engine_url: Annotated[str | None, typer.Option(help="With --text: a running engine.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="With --text: seconds for one answer.")] = None,
    relative: Annotated[int | None, typer.Option(help="With --text: size of the model's coordinates.")] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Candidates for each item.")] = 1,
    verifier: Annotated[Path | None, typer.Option(help="Model directory that judges candidates.")] = None,
    candidates: Annotated[int, typer.Option(min=1, help="Most candidates that are judged.")] = 20,
    json_file: JsonOption = None,
    picture: Annotated[Path | None, typer.Option(help="Also show hits and misses in this HTML file.")] = None,
) -> None:
    """Accuracy by application, platform, kind and size, with 95 % intervals."""
    items = _usable(path)

    async def ask() -> list[Answer]:
        async with contextlib.AsyncExitStack() as stack:

            def opened(directory: Path, url: str | None) -> ModelEngine:
                engine = open_engine(directory, url, timeout)
                stack.push_async_callback(engine.close)
                return engine

            if text:
                grounder: Grounder = EngineGrounder.from_dir(opened(model, engine_url), model, relative=relative)
            else:
                from dart_agent.grounding.pointer_model import PointerGrounder, PointerModel

                threshold = JUDGED if verifier else THRESHOLD
                grounder = PointerGrounder(PointerModel(model, device=device), threshold=threshold)
            if verifier:
                judge = Verifier.from_dir(opened(verifier, None), verifier)
                grounder = VerifiedGrounder(grounder, judge, candidates=candidates)
            with waiting_for(f"the answers to {len(items)} items"):
                return await answers_of(grounder, items, k)

    answers = asyncio.run(ask())
    found = accuracies(answers)
    write_json(json_file, list(map(asdict, found)))
    table = Table("", "", "items", "accuracy", "95 %", f"any of {k}", box=None)
    for row in found:
        table.add_row(*row.cells)
    console.print(table)
    if picture is not None:
        picture.write_text(hits_page(f"{model.name} on {path.name}", answers), encoding="utf-8")


mount_package(app, "ground", ("collect", "explore"), "dart_gym_grounding_data.data_commands", "grounding_data")
