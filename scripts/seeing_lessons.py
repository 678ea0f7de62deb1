"""Lessons in seeing: a model that can copy learns where a card lies on a screen, and to click there.

Demonstrations teach where things always stand. Where something lies that moves, a card that is hardly lighter than its
panel, is not learnt from them: on the very demonstrations that it was taught with, a model without these lessons gave
the right one of two columns half of its probability. First the tower alone: each token of an image is told whether a
card is on it, and where the middle of that card, or of itself, is. Then all of the model: a screen with one card, and
the click on it, while the tower goes on and copying is repeated, so that neither is forgotten.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from copying_lessons import AGENT, batches, copying_loss, rate_share, set_rate
from reading_lessons import image_tokens
from seeing_screens import GRID, SIZES, Screen, drawn, middle
from torch import Tensor, nn

from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.prompting.conversation import Conversation
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.model_loading import load_model

TOWER_BATCH, TOWER_RATE = 32, 2e-3
BATCH, LEARNING_RATE = 16, 1e-3
MOST_CARDS = 6
ACROSS, DOWN = (max(sides) // GRID + 1 for sides in zip(*SIZES, strict=True))
"""Places of the grid, in each direction."""
ASKED = ("Find the card", "Use the card", "Change the card", "card", "Move the card", "the title of the card")


class Tower:
    """What each token of an image is told, by heads that are thrown away after the lessons."""

    def __init__(self, model: nn.Module, vision: VisionSpec) -> None:
        self.model, self.vision = model, vision
        width = model.config.text_config.hidden_size
        self.card, self.place = nn.Linear(width, 1), nn.Linear(width, ACROSS + DOWN)
        self.heads = [*self.card.parameters(), *self.place.parameters()]

    def loss(self, screens: Sequence[Screen]) -> tuple[Tensor, float]:
        """Loss of what the tokens say, and the share of cards' tokens that know it and, to 8 pixels, its middle."""
        losses, shares = [], []
        shown = image_tokens(self.model, self.vision, [screen.image for screen in screens])
        for screen, tokens in zip(screens, shown, strict=True):
            here, places = labels(screen, self.vision.factor)
            found = self.card(tokens)[:, 0]
            loss = nn.functional.binary_cross_entropy_with_logits(found, here, pos_weight=torch.tensor(4.0))
            right, weights = found > 0, 0.2 + here
            across, down = self.place(tokens).split((ACROSS, DOWN), -1)
            for scores, place in zip((across, down), places.unbind(-1), strict=True):
                each = nn.functional.cross_entropy(scores, place, reduction="none")
                loss = loss + 0.3 * (each * weights).sum() / weights.sum()
                right = right & ((scores.argmax(-1) - place).abs() <= 2)
            losses.append(loss)
            if bool(here.any()):  # a small card between tokens is on none of them
                shares.append(float(right[here > 0].float().mean()))
        return torch.stack(losses).mean(), sum(shares) / len(shares)


def labels(screen: Screen, side: int) -> tuple[Tensor, Tensor]:
    """Return what is on each token: (tokens,) 1.0 for a card, (tokens, 2) places of its middle or their own."""
    height, width = screen.image.shape[:2]
    rows, columns = height // side, width // side
    here, centers = torch.zeros(rows, columns), torch.zeros((rows, columns, 2), dtype=torch.long)
    for row in range(rows):
        for column in range(columns):
            centers[row, column] = torch.tensor((column * side + side // 2, row * side + side // 2))
            for left, top, right, bottom in screen.cards:
                wide = min((column + 1) * side, right + 1) - max(column * side, left)
                high = min((row + 1) * side, bottom + 1) - max(row * side, top)
                if wide >= min(8, (right - left) * 0.5) and high >= min(4, (bottom - top) * 0.4):
                    here[row, column] = 1.0
                    centers[row, column] = torch.tensor(middle((left, top, right, bottom)))
    return here.flatten(), centers.flatten(0, 1) // GRID


def samples(
    rng: random.Random, screens: Sequence[Screen], conversation: Conversation, tokens: ModelTokens
) -> list[Sample]:
    """For each screen with one card, which is named by its number, an instruction and the click."""
    result = []
    for number, screen in enumerate(screens):
        conversation.begin(f"{rng.choice(ASKED)}.")
        conversation.observe(screen.image)
        x, y = middle(screen.cards[0])
        response = tokens.response(f"Action: click(start_box='({x},{y})')")
        result.append(Sample(conversation.prompt().token_ids, (str(number),), tuple(response)))
    return result


def click_logprobs(
    model: nn.Module,
    vision: VisionSpec,
    rng: random.Random,
    screens: Sequence[Screen],
    conversation: Conversation,
    tokens: ModelTokens,
) -> Tensor:
    """(screens, length) log-probabilities of the tokens of the clicks on the cards, 0 beyond them."""
    images = {str(number): screen.image for number, screen in enumerate(screens)}
    collate = Collator(tokens, vision, ImageCache(images.__getitem__, 1))
    logprobs, _ = response_logprobs(model, collate(samples(rng, screens, conversation, tokens)), tokens.suppressed_ids)
    return logprobs


def teach_seeing(
    model_dir: Path,
    output_dir: Path,
    steps: tuple[int, int],
    words: list[str],
    *,
    say: Callable[[str], None],
    seed: int = 0,
) -> None:
    """Train a model that can copy, and write it.

    Args:
        model_dir: of the model.
        output_dir: where the taught one is written.
        steps: of the tower alone, and of all of the model.
        words: of the lessons in copying.
        say: is told how far it is every fifty steps.
        seed: of the screens and the lessons.
    """
    torch.manual_seed(seed)
    model, vision = load_model(model_dir), VisionSpec.from_dir(model_dir)
    tower, rng = Tower(model, vision), random.Random(f"seeing/{seed}")
    _teach_tower(tower, rng, steps[0], say)
    _teach_clicks(tower, ModelTokens.load(model_dir), rng, steps[1], words, say, seed)
    checkpoint.write_model(model, output_dir, model_dir)


def _teach_tower(tower: Tower, rng: random.Random, steps: int, say: Callable[[str], None]) -> None:
    weights = list(tower.model.model.visual.parameters())  # type: ignore[union-attr]
    optimizer = torch.optim.AdamW([*weights, *tower.heads], betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(1, steps + 1):
        set_rate(optimizer, TOWER_RATE * min(1.0, step / 30, max(0.1, (steps - step) / (0.3 * steps))))
        optimizer.zero_grad()
        loss, share = tower.loss([drawn(rng, rng.randint(1, MOST_CARDS)) for _ in range(TOWER_BATCH)])
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        if step % 50 == 0 or step == steps:
            say(f"tower: {step} steps, {share:.0%} of tokens with a card know it")


def _teach_clicks(
    tower: Tower,
    tokens: ModelTokens,
    rng: random.Random,
    steps: int,
    words: list[str],
    say: Callable[[str], None],
    seed: int,
) -> None:
    model, vision = tower.model, tower.vision
    conversation = Conversation(tokens, vision, AGENT, get_format("ui_tars"))
    texts = batches(random.Random(f"copying/{seed}"), words, conversation, tokens)
    optimizer = torch.optim.AdamW([*model.parameters(), *tower.heads], betas=(0.9, 0.98), weight_decay=0.0)
    for step, rows in zip(range(1, steps + 1), texts, strict=False):
        set_rate(optimizer, LEARNING_RATE * rate_share(step, steps))
        optimizer.zero_grad()
        screens = [drawn(rng, 1) for _ in range(BATCH)]
        told, _ = tower.loss(screens)
        logprobs = click_logprobs(model, vision, rng, screens, conversation, tokens)
        (0.3 * told - 0.1 * logprobs.sum() / BATCH).backward()
        copied, share = copying_loss(model, rows, tokens.pad_id)
        copied.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == steps:
            clicked = logprobs.detach().sum(1).exp().mean().item()
            say(f"seeing: {step} steps, {clicked:.0%} of clicks and {share:.0%} of copied tokens")
