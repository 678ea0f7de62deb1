"""GUI-Actor's head against coordinates in text: two tiny models, the same screens, the same time, one thread.

Both start from the same untrained weights and train everything on the same pairs of one screen size, one thread, until
a budget of seconds is spent; then both answer on held-out screens of that size and of two others. The text
model writes coordinates relative to the screen, so that none of its numbers is new on another size. A third model is
the one that learnt text, frozen, with a head on it that gets as much time again.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.agent.drawn_screens_set import draw_items
from benchmarks.reporting.report import Report
from dart_agent.engines.base.engine import Sampling
from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.grounding.candidate import Grounder
from dart_agent.grounding.grounding_scores import Accuracy, evaluate_grounder
from dart_agent.grounding.pointer_model import PointerGrounder, PointerModel
from dart_agent.grounding.pointer_training import train_pointer
from dart_agent.grounding.screenspot import GroundingItem
from dart_agent.grounding.text_grounder import EngineGrounder
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_train.trainer.batches.samples import Sample
from dart_train.trainer.settings.supervised_config import SupervisedConfig
from dart_train.trainer.supervised import train_supervised

SIZE = (168, 112)
OTHER_SIZES = ((112, 168), (224, 168))
RELATIVE = 200  # each of these numbers is one token of the tiny model
BATCH, LEARNING_RATE, UNTIL_TIME = 16, 2e-3, 1_000_000
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: seconds of each training, screens to train on and to score on, of each size."""

    seconds: float = 120.0
    screens: int = 600
    held_out: int = 75


def measure(sizes: Sizes, family: str, progress: Progress) -> Report:
    """Train, score, compare."""
    torch.set_num_threads(1)
    items = draw_items(sizes.screens, SIZE, seed=0)
    held_out = {size: draw_items(sizes.held_out, size, seed=1) for size in (SIZE, *OTHER_SIZES)}
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        start = build_tiny_model(root / "start", config=TinyModelConfig(family=family, vision_layers=2))
        progress(f"text, {sizes.seconds:g} s")
        text_steps = _train_text(start, root / "text", items, sizes.seconds)
        text, text_rate = asyncio.run(_score_text(root / "text", held_out))
        found, steps, rates = {"text": text}, {"text": text_steps}, {"text": text_rate}
        for name, source, whole in (("head", start, True), ("frozen", root / "text", False)):
            progress(f"{name}, {sizes.seconds:g} s")
            torch.manual_seed(0)
            model = PointerModel(source, begin="")
            steps[name] = _train_head(model, items, sizes.seconds, whole)
            found[name], rates[name] = asyncio.run(_score(PointerGrounder(model), held_out))
    keys = {"ground.locate_per_s": rates["head"], "ground.text_locate_per_s": rates["text"]}
    keys["ground.head_vs_text"] = found["head"][SIZE].rate - found["text"][SIZE].rate
    for name, scores in found.items():
        for size, score in scores.items():
            where = f"ground.{name}.{size[0]}x{size[1]}"
            keys |= {where: score.rate, f"{where}.low": score.low, f"{where}.high": score.high}
        keys[f"ground.{name}.steps"] = steps[name]
    notes = [
        "head_vs_text is the difference in accuracy on held-out screens of the size that was trained on",
        f"{family}, {sizes.seconds:g} seconds of training each, one thread, {len(items)} pairs, "
        f"{4 * sizes.held_out} held out of each size; .low and .high: Wilson's 95 % interval",
    ]
    return Report("grounding", keys, notes=notes)


def _train_text(start: Path, out: Path, items: list[GroundingItem], seconds: float) -> int:
    """Cross-entropy on the middles of boxes, asked as `EngineGrounder` asks; returns the steps."""
    tokens = ModelTokens.load(start)
    asked = EngineGrounder(None, tokens=tokens, vision=VisionSpec.from_dir(start))  # type: ignore[arg-type]  # writes prompts only
    shots = {f"{id(item.image)}": item.screenshot() for item in items}
    samples = []
    for item in items:
        box, (width, height) = item.boxes[0], item.screen
        x, y = (box.left + box.right) / 2 / width, (box.top + box.bottom) / 2 / height
        answer = tokens.response(f"({round(x * RELATIVE)},{round(y * RELATIVE)})")
        prompt = asked.prompt(item.description, item.screenshot())
        samples.append(Sample(prompt.token_ids, (f"{id(item.image)}",), tuple(answer), supervised=True))
    config = SupervisedConfig(
        max_seconds=seconds, batch_size=BATCH, learning_rate=LEARNING_RATE, warmup_steps=20, schedule="constant",
        weight_decay=0.0, threads=1,
    )  # fmt: skip
    return train_supervised(start, samples, shots.__getitem__, out, config).steps


def _train_head(model: PointerModel, items: list[GroundingItem], seconds: float, whole: bool) -> int:
    done, end = 0, time.monotonic() + seconds

    def told(step: int, loss: float) -> bool:
        nonlocal done
        done = step
        return time.monotonic() > end

    train_pointer(
        model, items, steps=UNTIL_TIME, batch_size=BATCH, learning_rate=LEARNING_RATE, whole=whole, on_step=told
    )
    return done


HeldOut = dict[tuple[int, int], list[GroundingItem]]
Scores = dict[tuple[int, int], Accuracy]


async def _score_text(model: Path, held_out: HeldOut) -> tuple[Scores, float]:
    engine = TransformersEngine(model, threads=1)
    try:
        tokens, vision = ModelTokens.load(model), VisionSpec.from_dir(model)
        sampling = Sampling(max_tokens=12, temperature=0.0)
        grounder = EngineGrounder(engine, tokens=tokens, vision=vision, relative=RELATIVE, sampling=sampling)
        return await _score(grounder, held_out)
    finally:
        await engine.close()


async def _score(grounder: Grounder, held_out: HeldOut) -> tuple[Scores, float]:
    """Accuracy on each size, and queries a second of processor time on the size that was trained on, seen first."""
    scores, seconds = {}, {}
    for size, items in held_out.items():
        began = time.process_time()
        scores[size] = (await evaluate_grounder(grounder, items))[0]
        seconds[size] = time.process_time() - began
    return scores, len(held_out[SIZE]) / seconds[SIZE]
