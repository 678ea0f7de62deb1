"""The commands `dart-agent ground collect` and `explore`, which the group `ground` takes up where this is installed."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dart_agent.policies.policy_factory import open_engine
from dart_gym.core.errors import ConfigurationError

console = Console()


def mount(app: typer.Typer) -> None:
    """Add them to a group."""
    app.command("collect")(collect_command)
    app.command("explore")(explore_command)


def collect_command(
    out: Annotated[Path, typer.Argument(help="Directory that is written: train and novel, in ScreenSpot's layout.")],
    names: Annotated[
        list[str] | None, typer.Argument(help="Bundled applications, tasks by id or file; all bundled without.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Actions and resets in each application.")] = 60,
    seed: Annotated[int, typer.Option(help="Of the exploration.")] = 0,
) -> None:
    """Walk applications on real desktops, and pair their elements with screenshots."""
    from dart_gym_grounding_data.collector import bundled, collect, task_named

    found = asyncio.run(collect([task_named(name) for name in names or bundled()], steps=steps, seed=seed))
    for line in found.problems:
        console.print(line, style="red", markup=False, highlight=False)
    for line in found.lines:
        console.print(line, markup=False, highlight=False)
    if not found.train and not found.novel:
        raise ConfigurationError("no application could be walked; next step: mend what is named above")
    found.write(out)


def explore_command(
    name: Annotated[str, typer.Argument(help="A bundled application, or a task by id or file.")],
    out: Annotated[Path, typer.Option(help="Directory that is written: graph.html, deeds.jsonl, screens.")],
    steps: Annotated[int, typer.Option(min=1, help="Actions and resets.")] = 100,
    seed: Annotated[int, typer.Option(help="Of ties.")] = 0,
    without: Annotated[list[str] | None, typer.Option(help="A part that is switched off; may be repeated.")] = None,
    model: Annotated[Path | None, typer.Option(help="A model that proposes; the tree does without.")] = None,
    engine_url: Annotated[str | None, typer.Option(help="With --model: a running engine.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="With --model: seconds for one answer.")] = None,
) -> None:
    """Explore an application, and leave a graph to look at with the data of every action."""
    from dart_gym_grounding_data.collector import task_named
    from dart_gym_grounding_data.exploration_page import write_exploration
    from dart_gym_grounding_data.explorer import Explorer, TreeProposer
    from dart_gym_grounding_data.model_proposer import ModelProposer
    from dart_gym_grounding_data.task_place import TaskPlace

    async def explore() -> Explorer:
        place, engine = TaskPlace(task_named(name)), open_engine(model, engine_url, timeout) if model else None
        proposer = ModelProposer(engine, model) if engine and model else TreeProposer()
        explorer = Explorer(place, steps, seed, frozenset(without or ()), proposer)
        try:
            await explorer.run()
        finally:
            await place.close()
            if engine:
                await engine.close()
        return explorer

    explorer = asyncio.run(explore())
    write_exploration(out, explorer.graph, name)
    console.print(f"{len(explorer.graph.nodes)} screens in {steps} steps, {explorer.resets} of them resets: "
                  f"{out / 'graph.html'}", highlight=False, soft_wrap=True)  # fmt: skip
