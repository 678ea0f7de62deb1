"""Makes what `configs/pointer.yaml` and `configs/pointer_pages.yaml` begin from: a tiny model that knows a little.

    .venv/bin/python scripts/make_pointer_start.py OUT [--start DIR] [--seconds 20] [--text]
    .venv/bin/python scripts/make_pointer_start.py OUT --pages [--seconds 40]

With a head that chooses among patches, or with --text one that writes coordinates: the same backbone, the same screens
and instructions of the task, the same seconds of processor time. --start takes a backbone that was made before.

With --pages the quick start's pages of clicks instead of drawn buttons: its shipped model gets a head, which learns
from demonstrations that the oracles play on real desktops (a run of its own in --runs-dir, which stays).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from dart_agent.episodes.trajectory import Trajectory
from dart_agent.grounding.candidate import Box
from dart_agent.grounding.pointer_model import PointerModel
from dart_agent.grounding.pointer_prompt import PointerPrompt
from dart_agent.grounding.pointer_training import train_pointer
from dart_agent.grounding.screenspot import GroundingItem
from dart_gym.core.actions import action_from_dict
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_gym.tasks.suites import fake_suite
from dart_train.config.run_config import load_config
from dart_train.launch import pipeline
from dart_train.processes.process_context import open_data
from dart_train.run.run_directory import RunDirectory
from dart_train.trainer.batches.demonstrations import Demonstration
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.model_loading import load_model

sys.path.append(str(Path(__file__).resolve().parent.parent))  # dart_lab is not installed
from dart_lab.agent.drawn_screens_set import draw_items
from dart_lab.agent.grounding_start import BATCH, cross_entropy, make_start, samples, train

SIZE, LEARNING_RATE, PAGES_RATE = (168, 112), 1e-3, 2e-3
ROOT = Path(__file__).resolve().parent.parent


async def task_items(count: int) -> list[GroundingItem]:
    """Training screens of fake/click-button with the instruction and the button that it means."""
    task, scenario = fake_suite.TASKS[0], fake_suite.FakeScenario()
    desktop = FakeDesktop(task.desktop)
    await desktop.start()
    items = []
    for seed in range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + count):
        asked = await scenario.prepare(desktop, task, seed)
        click, screen = await scenario.oracle(desktop), await desktop.screenshot()
        box = Box(click.x - 31, click.y - 18, click.x + 31, click.y + 18)
        items.append(GroundingItem(str(seed), asked.instruction, (box,), screen, (168, 224)))
    return items


def page_items(played: Iterable[Trajectory], load_image: Callable[[str], NDArray[np.uint8]]) -> list[GroundingItem]:
    """The steps of demonstrations; the click is the target."""
    items = []
    for one in sorted(played, key=lambda one: (one.task_id, one.seed)):
        demonstration = Demonstration.from_trajectory(one)
        for step, shot in zip(one.steps, demonstration.screenshots, strict=True):
            click, image = action_from_dict(step.actions[0]), load_image(shot)
            box, size = Box(click.x - 1, click.y - 1, click.x + 1, click.y + 1), (image.shape[1], image.shape[0])
            items.append(GroundingItem(f"{one.task_id} {one.seed}", demonstration.instruction, (box,), image, size))
    return items


def demonstrate(runs_dir: Path) -> RunDirectory:
    """Have the oracles play the tasks of `configs/pointer_pages.yaml`, as often as the quick start has them."""
    tasks = load_config(ROOT / "configs" / "pointer_pages.yaml").train_tasks
    settings = [
        "name=pointer-pages-shown",
        "demonstrations.grid=1",
        f"demonstrations.tasks=[{', '.join(tasks)}]",
    ]
    config = load_config(ROOT / "configs" / "quickstart.yaml", settings)
    return pipeline.execute(config, runs_dir, plain=True, only=("prepare", "demonstrate"))


def learn(model: PointerModel, items: list[GroundingItem], seconds: float, learning_rate: float) -> None:
    """Train everything for `seconds` of processor time."""
    end = time.process_time() + seconds
    train_pointer(
        model, items, steps=10**6, batch_size=BATCH, learning_rate=learning_rate, whole=True,
        on_step=lambda step, loss: time.process_time() > end,
    )  # fmt: skip


def main(
    out: Path,
    start: Annotated[Path | None, typer.Option(help="A backbone that was made before.")] = None,
    seconds: Annotated[float, typer.Option(help="Processor time on the task's own screens.")] = 20.0,
    text: Annotated[bool, typer.Option("--text", help="Coordinates in text.")] = False,
    pages: Annotated[bool, typer.Option("--pages", help="The quick start's pages of clicks.")] = False,
    runs_dir: Annotated[Path, typer.Option(help="With --pages: where the demonstrations are kept.")] = ROOT / "runs",
) -> None:
    """Make the backbone, teach it the task a little, write it."""
    torch.set_num_threads(1)
    if pages:
        run = demonstrate(runs_dir)
        torch.manual_seed(0)
        model = PointerModel(run.checkpoint(0), begin="", dtype="float32")
        with open_data(load_config(run.config), run) as data:
            items = page_items(data.trajectories(source="oracle"), data.load_image)
        learn(model, items, seconds, PAGES_RATE)
        model.save(out)
        return
    items = asyncio.run(task_items(400))
    with tempfile.TemporaryDirectory() as place:
        begun = start or make_start(Path(place), draw_items(300, SIZE, seed=0), 15.0, 30.0)
        torch.manual_seed(0)
        if not text:
            model = PointerModel(begun, begin="", dtype="float32")
            learn(model, items, seconds, LEARNING_RATE)
            model.save(out)
            return
        writer, asked = load_model(begun), PointerPrompt.load(begun)

        def answer(item: GroundingItem) -> list[int]:
            box, (width, height) = item.boxes[0], item.screen
            tall, wide = asked.vision.resized(height, width)
            x, y = (box.left + box.right) / 2 * wide / width, (box.top + box.bottom) / 2 * tall / height
            return asked.tokens.response(f"({round(x)},{round(y)})")

        loss = cross_entropy(writer, asked, samples(items, asked, answer, pointing=False), items)
        train(list(writer.parameters()), loss, items, seconds, LEARNING_RATE)
        checkpoint.write_model(writer, out, begun)


if __name__ == "__main__":
    typer.run(main)
