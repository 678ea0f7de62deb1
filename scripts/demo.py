"""Watch what reinforcement learning changed: the multi-turn model after it, beside the same model before.

    make demo                                                   the shipped models, until Ctrl+C
    .venv/bin/python scripts/demo.py --before DIR --after DIR --rounds 2

Both play the same held-out seeds of the tasks of `configs/multiturn.yaml` at the same time, each on two desktops. They
are to be seen live on one page, whose address is printed; a table counts who succeeded.
"""

from __future__ import annotations

import asyncio
import itertools
import webbrowser
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.episodes.play_list import play_list
from dart_agent.episodes.trajectory import Trajectory
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.client.private_cluster import LocalCluster
from dart_gym.cluster.server.page_server import PageServer
from dart_gym.cluster.server.watch_proxy import cluster_routes
from dart_train.config.run_config import RunConfig, load_config
from dart_train.core.demo_models import demo_models
from dart_train.processes.evaluate_version import task_steps
from dart_train.processes.run_policy import make_policy

ROOT = Path(__file__).resolve().parent.parent
MODELS = demo_models()
BEFORE, AFTER = "before RL", "after RL"
LANES = 2
"""Desktops of each model."""
Tally = Counter[tuple[str, str, bool]]
"""Episodes by name of the model, task, and whether they succeeded."""


def table_of(tally: Tally, tasks: Sequence[str]) -> Table:
    """Successes of episodes, of each task and model. Pure."""
    table = Table("task", BEFORE, AFTER, box=None)
    total = [" of ".join(map(str, _counts(tally, name, tasks))) for name in (BEFORE, AFTER)]
    for task in tasks:
        counts = [_counts(tally, name, [task]) for name in (BEFORE, AFTER)]
        table.add_row(task, *(f"{right} of {played}" if played else "" for right, played in counts))
    table.add_row("all", *total, style="bold")
    return table


def _counts(tally: Tally, name: str, tasks: Sequence[str]) -> tuple[int, int]:
    right = sum(tally[name, task, True] for task in tasks)
    return right, right + sum(tally[name, task, False] for task in tasks)


async def compete(config: RunConfig, models: dict[str, Path], rounds: int, console: Console, browser: bool) -> Tally:
    """Both models play each task once a round, with the round as the seed; returns what came of it."""
    tally, steps = Tally(), task_steps(config)
    engines = {name: TransformersEngine(path, name=name, threads=1) for name, path in models.items()}
    try:
        async with (
            LocalCluster(LANES * len(models)) as cluster,
            cluster_routes(cluster.url) as routes,
            PageServer(["live"], routes) as page,
        ):
            console.print(f"live: {page.url}", markup=False, highlight=False, soft_wrap=True)
            if browser:
                webbrowser.open(page.url)
            with Live(table_of(tally, config.train_tasks), console=console, transient=not console.is_terminal) as shown:

                async def play(name: str, seed: int) -> None:
                    def count(episode: Trajectory) -> None:
                        tally[name, episode.task_id, (episode.score or 0.0) >= 1.0] += 1
                        shown.update(table_of(tally, config.train_tasks))

                    policies = make_policy(models[name], config.agent, config.rollout.sampling)
                    client = ClusterClient(cluster.url, settings=ClientSettings(name=name))
                    episodes = [(task, seed) for task in config.train_tasks]
                    await play_list(
                        client, lambda _: policies(engines[name]), episodes,
                        concurrency=LANES, task_steps=steps, on_episode=count,
                    )  # fmt: skip

                for seed in range(rounds) if rounds else itertools.count():
                    await asyncio.gather(*(play(name, seed) for name in models))
    finally:
        for engine in engines.values():
            await engine.close()
    return tally


def main(
    before: Annotated[Path, typer.Option(help="Weights after the warm-up.")] = MODELS / "tiny_multiturn_start",
    after: Annotated[Path, typer.Option(help="Weights after reinforcement learning.")] = MODELS / "tiny_multiturn",
    config: Annotated[Path, typer.Option(help="Its tasks are played.")] = ROOT / "configs" / "multiturn.yaml",
    rounds: Annotated[int, typer.Option(min=0, help="Seeds of each task; 0 for no end.")] = 0,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in this machine's browser.")] = False,
) -> None:
    """Play both, and count."""
    disable_progress_bar()
    console = Console()
    chosen = load_config(config)
    try:
        tally = asyncio.run(compete(chosen, {BEFORE: before, AFTER: after}, rounds, console, browser))
    except KeyboardInterrupt:
        return
    if not console.is_terminal:
        console.print(table_of(tally, chosen.train_tasks))


if __name__ == "__main__":
    typer.run(main)
