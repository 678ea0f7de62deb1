"""Makes what `configs/pointer.yaml` begins from: a tiny backbone that reads, and knows its task a little.

    .venv/bin/python scripts/make_pointer_start.py OUT [--start DIR] [--seconds 20] [--text]

With a head that chooses among patches, or with --text one that writes coordinates: the same backbone, the same screens
and instructions of the task, the same seconds of processor time. --start takes a backbone that was made before.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.agent.drawn_screens_set import draw_items
from benchmarks.agent.grounding_start import BATCH, cross_entropy, make_start, samples, train
from dart_agent.grounding.candidate import Box
from dart_agent.grounding.pointer_model import PointerModel
from dart_agent.grounding.pointer_prompt import PointerPrompt
from dart_agent.grounding.pointer_training import train_pointer
from dart_agent.grounding.screenspot import GroundingItem
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_gym.tasks.suites import fake_suite
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.model_loading import load_model

SIZE, LEARNING_RATE = (168, 112), 1e-3


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


def main(
    out: Path,
    start: Annotated[Path | None, typer.Option(help="A backbone that was made before.")] = None,
    seconds: Annotated[float, typer.Option(help="Processor time on the task's own screens.")] = 20.0,
    wrong: Annotated[float, typer.Option(help="Share of screens with another screen's instruction.")] = 0.5,
    text: Annotated[bool, typer.Option("--text", help="Coordinates in text.")] = False,
) -> None:
    """Make the backbone, teach it the task a little, write it."""
    torch.set_num_threads(1)
    items, rng = asyncio.run(task_items(400)), random.Random(0)
    for number in rng.sample(range(len(items)), int(wrong * len(items))):  # imperfect on purpose
        other, own = rng.choice(items), items[number]
        items[number] = GroundingItem(own.name, other.description, own.boxes, own.image, own.screen)
    with tempfile.TemporaryDirectory() as place:
        begun = start or make_start(Path(place), draw_items(300, SIZE, seed=0), 15.0, 30.0)
        torch.manual_seed(0)
        if not text:
            model, end = PointerModel(begun, begin="", dtype="float32"), time.process_time() + seconds
            train_pointer(
                model, items, steps=10**6, batch_size=BATCH, learning_rate=LEARNING_RATE, whole=True,
                on_step=lambda step, loss: time.process_time() > end,
            )  # fmt: skip
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
