"""The verifier's share: candidates of a head that has learnt little, with and without a judge, on the same screens.

The judge starts from the same backbone as the head and learns from circles that the set itself gives: in the box that
is meant, in another one, anywhere. It sees as little around them as the screens are small. For a tenth of its time it
learns to read what it sees so near, for another tenth the word that is asked for comes next, both as in the lessons of
the start; then it learns to say True or False.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.grounding.candidate import Grounder
from dart_agent.grounding.grounding_scores import Accuracy, evaluate_grounder
from dart_agent.grounding.pointer_prompt import PointerPrompt
from dart_agent.grounding.screenspot import GroundingItem
from dart_agent.grounding.verifier import VerifiedGrounder, Verifier
from dart_agent.models.model_tokens import ModelTokens
from dart_lab.agent.grounding_start import color_of, on_screens, reading_loss, train
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.model_loading import load_model

MARGIN = 28
"""Pixels around a place that the judge sees: of these screens about as much as 500 are of a large one."""


def places_to_judge(
    items: Sequence[GroundingItem], rng: random.Random
) -> Iterator[tuple[GroundingItem, tuple[int, int], bool]]:
    """Make a verifier's lessons: of each item a point in a box, one on another element, and one off its own boxes."""
    by_screen: dict[Any, list[GroundingItem]] = {}
    for item in items:
        by_screen.setdefault(item.image if isinstance(item.image, Path) else id(item.image), []).append(item)
    for screen in by_screen.values():
        for item in screen:
            width, height = item.screen
            if not (own := [box for box in item.boxes if box.area]):
                continue
            others = [box for other in screen for box in other.boxes if other is not item and box.area]
            tried = [rng.choice(own), *([rng.choice(others)] if others else [])]
            points = [(rng.uniform(box.left, box.right), rng.uniform(box.top, box.bottom)) for box in tried]
            points.append((rng.uniform(0, width), rng.uniform(0, height)))
            for x, y in points:
                place = min(width - 1, max(0, int(x))), min(height - 1, max(0, int(y)))
                yield item, place, any(box.contains(*place) for box in item.boxes)


def train_verifier(
    start: Path, out: Path, items: Sequence[GroundingItem], seconds: float, learning_rate: float = 1e-3
) -> int:
    """Cross-entropy of True and False, with equal numbers of both; returns the steps."""
    torch.manual_seed(0)
    rng, shots = random.Random(0), dict[str, NDArray[np.uint8]]()
    model, tokens = load_model(start), ModelTokens.load(start)
    judge = Verifier.from_dir(None, start, MARGIN)  # type: ignore[arg-type]  # writes prompts only
    samples: dict[bool, list[Sample]] = {True: [], False: []}
    named: list[tuple[Sample, int]] = []
    circled: list[tuple[str, torch.Tensor]] = []
    asked, by_screen = PointerPrompt.load(start), on_screens(items)
    for number, (item, (x, y), right) in enumerate(places_to_judge(items, rng)):
        prompt = judge.prompt(item.description, item.screenshot(), x, y)
        shots[str(number)] = prompt.images[0]
        sample = Sample(prompt.token_ids, (str(number),), (judge.answer(right),), supervised=True)
        samples[right].append(sample)
        named.append((sample, tokens.encode(f" {item.description.split()[1]}")[0]))
        circled.append((str(number), _shown(asked, prompt.images[0], by_screen[id(item.image)], x, y)))

    def reading(batch: list[GroundingItem]) -> torch.Tensor:
        chosen = rng.sample(circled, len(batch))
        return reading_loss(
            model, asked, [shots[name] for name, _ in chosen], torch.cat([under for _, under in chosen])
        )

    seen = [*model.model.visual.parameters(), model.get_input_embeddings().weight]
    train(seen, reading, items, seconds / 10, 2e-3)
    collate = Collator(tokens, judge.vision, ImageCache(shots.__getitem__))

    def naming(batch: list[GroundingItem]) -> torch.Tensor:
        chosen = [replace(sample, response_ids=(word,)) for sample, word in rng.sample(named, len(batch))]
        return loss_of(chosen)

    def saying(batch: list[GroundingItem]) -> torch.Tensor:
        return loss_of([rng.choice(samples[number % 2 == 0]) for number in range(len(batch))])

    def loss_of(chosen: list[Sample]) -> torch.Tensor:
        micro = collate(chosen)
        logprobs, _ = response_logprobs(model, micro, tokens.suppressed_ids)
        return -logprobs.sum() / micro.num_tokens

    train(list(model.parameters()), naming, items, seconds / 10, 2e-3)
    steps = train(list(model.parameters()), saying, items, 0.8 * seconds, learning_rate)
    checkpoint.write_model(model, out, start)
    return steps


def _shown(
    asked: PointerPrompt, seen: NDArray[np.uint8], on_screen: Sequence[GroundingItem], x: int, y: int
) -> torch.Tensor:
    """(tokens,) of what is seen around a place: 1 and up for the colour under the middle of each, 0 for none."""
    (rows, columns), (width, height) = asked.grid(seen), on_screen[0].screen
    (left, right), (top, bottom) = (
        (max(0, at - MARGIN), min(most, at + MARGIN)) for at, most in ((x, width), (y, height))
    )
    found = torch.zeros(rows, columns, dtype=torch.long)
    for row, column in itertools.product(range(rows), range(columns)):
        at = left + (column + 0.5) * (right - left) / columns, top + (row + 0.5) * (bottom - top) / rows
        found[row, column] = sum(color_of(item) for item in on_screen if item.boxes[0].contains(*at))
    return found.flatten()


async def score_verified(
    plain: Grounder, verifier: Path, items: Sequence[GroundingItem], candidates: int = 8
) -> tuple[Accuracy, Accuracy]:
    """Accuracy of the first candidate, and of the one that the verifier chooses."""
    engine = TransformersEngine(verifier, threads=1)
    try:
        judged = VerifiedGrounder(plain, Verifier.from_dir(engine, verifier, MARGIN), candidates=candidates)
        return (await evaluate_grounder(plain, items))[0], (await evaluate_grounder(judged, items))[0]
    finally:
        await engine.close()


def measure_verifier(
    start: Path,
    root: Path,
    plain: Grounder,
    items: Sequence[GroundingItem],
    held_out: Sequence[GroundingItem],
    seconds: float,
) -> dict[str, float]:
    """Keys of the report."""
    steps = train_verifier(start, root / "verifier", items, seconds)
    without, judged = asyncio.run(score_verified(plain, root / "verifier", held_out))
    keys = {"ground.verifier.steps": float(steps)}
    for name, score in (("without", without), ("with", judged)):
        where = f"ground.verifier.{name}"
        keys |= {where: score.rate, f"{where}.low": score.low, f"{where}.high": score.high}
    return keys
