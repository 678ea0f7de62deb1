"""Lessons in copying, in text alone: a fresh model learns to type what its instruction names.

From demonstrations alone a small model learns in minutes where things stand and in which order they are used, and not
to type a text that it has never typed: after 1,350 supervised steps on fourteen tasks a model of drawn programs typed
other words than it was asked for, but for those that it had typed before. Here instructions are random words with
texts among them, several of which are to be typed one after the other, with other actions in between. There are no
screens, so that a step is cheap. Input and output share one embedding (`tied`), so that a text that was never seen can
be typed; the base of the rotary embedding is large, so that a token far back can be found by what it is.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import INSTRUCTION_WORDS
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.model_loading import load_model

BATCH, POOL, LEARNING_RATE = 32, 256, 2e-3
CHARACTERS = string.ascii_letters + string.digits
SYLLABLES = [*(first + second for first in "bcdfghjklmnprstvwz" for second in "aeiou"), *"aeiounrslt"]
LINKS = ("the", "of", "for", "a", "to", "on")
BETWEEN = ("Action: hotkey(key='tab')", "Action: hotkey(key='ctrl a')")
AGENT = ConversationConfig(style="short", screenshots=1, texts=4)
"""What the model is shown of an episode, as in `configs/tiny_copier.yaml`."""
NO_SCREEN = np.full((28, 28, 3), 255, np.uint8)
"""(H, W, 3) uint8: one token of an image, which is never looked at."""

Row = tuple[tuple[int, ...], tuple[int, ...]]
"""Ids of a prompt and of the response to it."""


def word(rng: random.Random) -> str:
    """A word: of the tokenizer, of characters, a number, or of syllables."""
    kind = rng.random()
    if kind < 0.2:
        return rng.choice(INSTRUCTION_WORDS)
    if kind < 0.35:
        return "".join(rng.choice(CHARACTERS) for _ in range(rng.randint(2, 6)))
    if kind < 0.5:
        return str(rng.randint(0, 320 if rng.random() < 0.6 else 2030))
    made = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 4)))
    return made.capitalize() if rng.random() < 0.6 else made


def typed(rng: random.Random) -> str:
    """A text of one to four words."""
    count = rng.choice((1, 1, 1, 1, 2, 3, 4))
    return " ".join(word(rng) if rng.random() < 0.8 else rng.choice(LINKS) for _ in range(count))


def lesson(rng: random.Random, words: list[str], conversation: Conversation, tokens: ModelTokens) -> list[Row]:
    """One instruction, and the prompts and responses at which its texts are typed."""

    def some() -> str:
        return " ".join(rng.choice(words) for _ in range(rng.randint(1, 5)))

    texts = [typed(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    quoted = [f'"{text}"' if rng.random() < 0.6 or " " in text else text for text in texts]
    asked = " ".join(f"{some()} {text}" for text in quoted)
    conversation.begin(asked + rng.choice((".", f" {some()}.", "")))
    rows = []
    for text in texts:
        while rng.random() < 0.5:
            conversation.observe(NO_SCREEN)
            click = f"Action: click(start_box='({rng.randint(0, 40) * 4},{rng.randint(0, 50) * 4})')"
            conversation.respond(tuple(tokens.response(rng.choice((click, *BETWEEN)))))
        conversation.observe(NO_SCREEN)
        response = tuple(tokens.response(f"Action: type(content='{text}')"))
        rows.append((tuple(conversation.prompt().token_ids), response))
        conversation.respond(response)
    return rows


def batches(
    rng: random.Random,
    words: list[str],
    conversation: Conversation,
    tokens: ModelTokens,
    taught: Callable[[random.Random, list[str], Conversation, ModelTokens], list[Row]] = lesson,
) -> Iterator[list[Row]]:
    """Batches of new lessons without end, each of several instructions."""
    pool: list[Row] = []
    while True:
        while len(pool) < POOL:
            pool += taught(rng, words, conversation, tokens)
        rng.shuffle(pool)
        yield pool[:BATCH]
        pool = pool[BATCH:]


def teach_copying(
    model_dir: Path, output_dir: Path, steps: int, words: list[str], *, say: Callable[[str], None], seed: int = 0
) -> None:
    """Train a fresh model's text part to copy, tell the share of tokens that are right, and write the model."""
    torch.manual_seed(seed)
    model, tokens = load_model(model_dir), ModelTokens.load(model_dir)
    conversation = Conversation(tokens, VisionSpec.from_dir(model_dir), AGENT, get_format("ui_tars"))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    lessons = batches(random.Random(seed), words, conversation, tokens)
    for step, rows in zip(range(1, steps + 1), lessons, strict=False):
        loss, share = copying_loss(model, rows, tokens.pad_id)
        set_rate(optimizer, LEARNING_RATE * rate_share(step, steps))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == steps:
            say(f"copying: {step} steps, {share:.0%} of tokens")
    checkpoint.write_model(model, output_dir, model_dir)


def rate_share(step: int, steps: int) -> float:
    """The share of the learning rate at a step from 1 on: it rises for 50 steps, and falls in the last three tenths."""
    return min(1.0, step / 50, max(0.05, (steps - step) / (0.3 * steps)))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Let an optimizer's next step have a learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def copying_loss(model: nn.Module, rows: list[Row], pad_id: int) -> tuple[torch.Tensor, float]:
    """Cross-entropy of the responses by the text part alone, and the share of their tokens that are right."""
    ids, attended, wanted = padded(rows, pad_id)
    embedded = model.get_input_embeddings()(ids)  # type: ignore[operator]
    found = model.model.language_model(inputs_embeds=embedded, attention_mask=attended)  # type: ignore[operator, union-attr]
    logits = model.lm_head(found.last_hidden_state[:, :-1][wanted])  # type: ignore[operator]
    target = ids[:, 1:][wanted]
    share = (logits.argmax(-1) == target).float().mean().item()
    return nn.functional.cross_entropy(logits, target), share


def padded(rows: list[Row], pad_id: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rows, length) ids and attention mask, and (rows, length - 1) where the next token is a response's."""
    length = max(len(prompt) + len(response) for prompt, response in rows)
    ids = torch.full((len(rows), length), pad_id)
    attended, wanted = torch.zeros_like(ids), torch.zeros((len(rows), length - 1), dtype=torch.bool)
    for number, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        ids[number, :end] = torch.tensor((*prompt, *response))
        attended[number, :end] = 1
        wanted[number, len(prompt) - 1 : end - 1] = True
    return ids, attended, wanted
