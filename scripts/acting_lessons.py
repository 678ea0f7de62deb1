"""Lessons in acting, in text alone: a model that can copy does whatever its instruction names.

A model that has seen a key in three demonstrations hardly knows how that is written: what it samples is
`hotkey(key='ctrl,25)')`, and reinforcement learning, which pushes down what fails, moves that first. Here instructions
are random words with texts, keys and points among them, which are to be typed, pressed and clicked one after the other,
so that every action is written thousands of times. "1st" to "3rd" name the columns of rows that lie one below the
other, the first of them the first row's: a number says nothing by itself, and what it stands for depends on how many
were used before. What was learnt of seeing is repeated all the while.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import torch
from copying_lessons import AGENT, NO_SCREEN, Row, batches, copying_loss, rate_share, set_rate, typed
from seeing_lessons import click_logprobs
from seeing_screens import drawn
from torch import nn

from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.prompting.conversation import Conversation
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.model_loading import load_model

LEARNING_RATE = 1e-3
SEEN, SEEN_EVERY = 16, 4
"""Screens with a card, which every fourth step has beside its texts."""
KEYS = (
    *("tab", "shift tab", "enter", "esc", "space", "backspace", "delete", "home", "end", "up", "down", "left", "right"),
    *("pageup", "pagedown", "ctrl a", "ctrl c", "ctrl v", "ctrl x", "ctrl z", "ctrl s", "ctrl f", "ctrl w", "ctrl t"),
    *(
        "ctrl home",
        "ctrl end",
        "ctrl enter",
        "ctrl right",
        "shift end",
        "shift home",
        "shift down",
        "alt f4",
        "alt tab",
    ),
)
ORDINALS, NUMBERED = ("1st", "2nd", "3rd"), 0.3
"""Numbers, and their share of what is named."""
POINTED = ("click", "click", "click", "click", "click", "left_double", "right_single", "hover")


def point(rng: random.Random) -> str:
    """A point, on the grid of the demonstrations."""
    return f"({rng.randint(0, 72) * 4},{rng.randint(0, 56) * 4})"


def named(rng: random.Random, row: int) -> tuple[str, str]:
    """What an instruction names, and the action that it asks for; a number is of the next row."""
    if rng.random() < NUMBERED:
        column = rng.randrange(len(ORDINALS))
        return ORDINALS[column], f"click(start_box='({(1 + 2 * column) * 36},{(1 + row) * 36})')"
    kind = rng.random()
    if kind < 0.6:
        text = typed(rng)
        return f'"{text}"' if rng.random() < 0.6 or " " in text else text, f"type(content='{text}')"
    if kind < 0.8:
        key = rng.choice(KEYS)
        return f"press {key}" if rng.random() < 0.5 else key, f"hotkey(key='{key}')"
    if kind < 0.92:
        name, place = rng.choice(POINTED), point(rng)
        return f"{name} {place}" if name != "click" or rng.random() < 0.5 else place, f"{name}(start_box='{place}')"
    if kind < 0.95:
        place, way = point(rng), rng.choice(("up", "down"))
        return f"scroll {way} {place}", f"scroll(start_box='{place}', direction='{way}')"
    if kind < 0.97:
        start, end = point(rng), point(rng)
        return f"drag {start} {end}", f"drag(start_box='{start}', end_box='{end}')"
    seconds = rng.choice(("0.2", "0.5", "1", "2"))
    return f"wait {seconds}", f"wait(seconds={seconds})"


def lesson(rng: random.Random, words: list[str], conversation: Conversation, tokens: ModelTokens) -> list[Row]:
    """One instruction, and the prompts and responses at which what it names is done.

    Between, other places are clicked, which no instruction names: what is next is found by what was done last.
    """

    def some() -> str:
        return " ".join(word for word in rng.choices(words, k=rng.randint(0, 5)) if word not in ORDINALS)

    asked, actions = list[str](), list[str]()
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        name, action = named(rng, sum(one in ORDINALS for one in asked))
        asked.append(name)
        actions.append(action)
    conversation.begin(" ".join(f"{some()} {name}" for name in asked).strip() + rng.choice((".", f" {some()}.", "")))
    rows = []
    for action in (*actions, "finished()"):
        while rng.random() < 0.3:
            conversation.observe(NO_SCREEN)
            conversation.respond(tuple(tokens.response(f"Action: click(start_box='{point(rng)}')")))
        conversation.observe(NO_SCREEN)
        response = tuple(tokens.response(f"Action: {action}"))
        rows.append((tuple(conversation.prompt().token_ids), response))
        conversation.respond(response)
    return rows if rng.random() < 0.4 else rows[:-1]


def teach_acting_by_words(
    model_dir: Path, output_dir: Path, steps: int, words: list[str], *, say: Callable[[str], None], seed: int = 0
) -> None:
    """Train a model that can copy and see to do what its instruction names, and write it."""
    torch.manual_seed(seed)
    model, tokens, rng = load_model(model_dir), ModelTokens.load(model_dir), random.Random(f"acting/{seed}")
    vision = VisionSpec.from_dir(model_dir)
    conversation = Conversation(tokens, vision, AGENT, get_format("ui_tars"))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    clicked = 0.0
    for step, rows in zip(range(1, steps + 1), batches(rng, words, conversation, tokens, lesson), strict=False):
        loss, share = copying_loss(model, rows, tokens.pad_id)
        set_rate(optimizer, LEARNING_RATE * rate_share(step, steps))
        optimizer.zero_grad()
        loss.backward()
        if step % SEEN_EVERY == 0:
            screens = [drawn(rng, 1) for _ in range(SEEN)]
            logprobs = click_logprobs(model, vision, rng, screens, conversation, tokens)
            (-0.1 * logprobs.sum() / SEEN).backward()
            clicked = logprobs.detach().sum(1).exp().mean().item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == steps:
            say(f"acting: {step} steps, {share:.1%} of tokens and {clicked:.0%} of clicks on cards")
    checkpoint.write_model(model, output_dir, model_dir)
