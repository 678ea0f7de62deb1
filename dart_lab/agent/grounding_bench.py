"""GUI-Actor's head against coordinates in text: two tiny models, the same screens, the same time, one thread.

Both start from the same weights, which read the screens and know what is asked for (`grounding_start`), and train
everything on the same pairs of one screen size, one thread, until a budget of processor time is spent; then both answer
on held-out screens of that size and of two others. The text model writes coordinates relative to the screen, so that
another size needs no new numbers. A third model is the backbone frozen, with a head that gets as much time. At last a
head that has learnt little, with and without a verifier.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dart_agent.engines.base.engine import Sampling
from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.grounding.attention_regions import JUDGED
from dart_agent.grounding.candidate import Grounder
from dart_agent.grounding.grounding_scores import Accuracy, evaluate_grounder
from dart_agent.grounding.pointer_model import PointerGrounder, PointerModel
from dart_agent.grounding.pointer_prompt import PointerPrompt
from dart_agent.grounding.pointer_training import train_pointer
from dart_agent.grounding.screenspot import GroundingItem
from dart_agent.grounding.text_grounder import EngineGrounder
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_lab.agent.drawn_screens_set import draw_items
from dart_lab.agent.grounding_start import BATCH, cross_entropy, make_start, samples, train
from dart_lab.agent.verifier_part import measure_verifier
from dart_lab.reporting.report import Report
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.model_loading import load_model

SIZE = (168, 112)
OTHER_SIZES = ((112, 168), (224, 168))
RELATIVE = 200  # each of these numbers is one token of the tiny model
LITTLE = 0.3  # of the time of the others has the head that is verified: of a right one nothing could be mended
LEARNING_RATE, UNTIL_TIME = 1e-3, 1_000_000
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement: seconds of each training, screens to train on and to score on, of each size."""

    seconds: float = 120.0
    screens: int = 600
    held_out: int = 75


def measure(sizes: Sizes, progress: Progress) -> Report:
    """Train, score, compare."""
    torch.set_num_threads(1)
    items = draw_items(sizes.screens, SIZE, seed=0)
    held_out = {size: draw_items(sizes.held_out, size, seed=1) for size in (SIZE, *OTHER_SIZES)}
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        progress(f"the start, {sizes.seconds / 2:g} s")
        start = make_start(root, items, sizes.seconds / 6, sizes.seconds / 3)
        progress(f"text, {sizes.seconds:g} s")
        text_steps = _train_text(start, root / "text", items, sizes.seconds)
        text, text_rate = asyncio.run(_score_text(root / "text", held_out))
        found = {"text": text}
        steps = {"text": text_steps}
        rates = {"text": text_rate}
        for name, whole in (("head", True), ("frozen", False)):
            progress(f"{name}, {sizes.seconds:g} s")
            torch.manual_seed(0)
            model = PointerModel(start, begin="", dtype="float32")
            steps[name] = train_head(model, items, sizes.seconds, whole)
            found[name], rates[name] = asyncio.run(_score(PointerGrounder(model), held_out))
        progress(f"a head of {LITTLE * sizes.seconds:g} s and a verifier of {2 * sizes.seconds:g} s")
        little = PointerModel(start, begin="", dtype="float32")
        train_head(little, items, LITTLE * sizes.seconds, True)
        plain = PointerGrounder(little, threshold=JUDGED)
        judged = measure_verifier(start, root, plain, items, held_out[SIZE], 2 * sizes.seconds)
    keys = {"ground.locate_per_s": rates["head"], "ground.text_locate_per_s": rates["text"]}
    keys["ground.head_vs_text"] = found["head"][SIZE].rate - found["text"][SIZE].rate
    keys |= judged
    for name, scores in found.items():
        for size, score in scores.items():
            where = f"ground.{name}.{size[0]}x{size[1]}"
            keys |= {where: score.rate, f"{where}.low": score.low, f"{where}.high": score.high}
        keys[f"ground.{name}.steps"] = steps[name]
    notes = [
        "head_vs_text is the difference in accuracy on held-out screens of the size that was trained on",
        f"{sizes.seconds:g} seconds of processor time for each training after {sizes.seconds / 2:g} for the start, one "
        f"thread, {len(items)} pairs, {4 * sizes.held_out} held out of each size; .low, .high: Wilson's 95 % interval",
    ]
    return Report("grounding", keys, notes=notes)


def _train_text(start: Path, out: Path, items: Sequence[GroundingItem], seconds: float) -> int:
    """Cross-entropy on the middles of boxes, asked as `EngineGrounder` asks; returns the steps."""
    torch.manual_seed(0)
    model, asked = load_model(start), PointerPrompt.load(start)

    def answer(item: GroundingItem) -> list[int]:
        box, (width, height) = item.boxes[0], item.screen
        x, y = (box.left + box.right) / 2 / width, (box.top + box.bottom) / 2 / height
        return asked.tokens.response(f"({round(x * RELATIVE)},{round(y * RELATIVE)})")

    loss = cross_entropy(model, asked, samples(items, asked, answer, pointing=False), items)
    steps = train(list(model.parameters()), loss, items, seconds, LEARNING_RATE)
    checkpoint.write_model(model, out, start)
    return steps


def train_head(
    model: PointerModel,
    items: Sequence[GroundingItem],
    seconds: float,
    whole: bool,
    learning_rate: float = LEARNING_RATE,
    most: int = UNTIL_TIME,
    batch: int = BATCH,
) -> int:
    """Train for `seconds` of processor time, or at most `most` steps; return the steps."""
    done, end = 0, time.process_time() + seconds

    def told(step: int, loss: float) -> bool:
        nonlocal done
        done = step
        return most == UNTIL_TIME and time.process_time() > end

    train_pointer(model, items, steps=most, batch_size=batch, learning_rate=learning_rate, whole=whole, on_step=told)
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
