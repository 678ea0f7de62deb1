"""The backbone that a comparison of grounders starts from: tiny, but it reads the screens and knows what is asked for.

Two lessons that prefer no way of answering. Reading: every token of an image is taught the colour of the button that it
shows, as that word's input embedding. Naming: after either question, the one that ends in <ACTOR> and the one that asks
for coordinates, the word that was asked for comes next. Where a thing is, is in neither.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dart_agent.grounding.candidate import Box
from dart_agent.grounding.pointer_model import PointerModel
from dart_agent.grounding.pointer_prompt import PointerPrompt
from dart_agent.grounding.screenspot import GroundingItem
from dart_agent.grounding.text_grounder import EngineGrounder
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_gym.tasks.suites.fake_suite import COLORS
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.model_loading import load_model

CONFIG = TinyModelConfig(
    family="qwen3_vl",  # its tower is told where patches are
    vision_layers=1,
    tied=True,  # what is read, asked for and written has one embedding
    min_pixels=256 * 192,  # the smallest button is as large as a token
    extra_words=("Query", "Output", "only", "one", "your", "response", "pyautogui", "os", "assistant", "user", "What"),
)
BATCH, WARMUP_STEPS = 16, 20


def train(
    weights: Sequence[Tensor],
    loss_of: Callable[[list[GroundingItem]], Tensor],
    items: Sequence[GroundingItem],
    seconds: float,
    learning_rate: float,
) -> int:
    """Train with AdamW on batches of items for `seconds` of processor time; return the steps."""
    optimizer = torch.optim.AdamW(weights, learning_rate, weight_decay=0.0)
    rng, end = random.Random(0), time.process_time() + seconds
    for step in count(1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, step / WARMUP_STEPS)
        loss = loss_of(rng.sample(items, BATCH))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        if time.process_time() > end:
            break
    return step


def make_start(root: Path, items: Sequence[GroundingItem], reading_s: float, naming_s: float) -> Path:
    """A directory without a head that both ways of answering start from."""
    torch.manual_seed(0)
    begun = PointerModel(build_tiny_model(root / "tiny", config=CONFIG), begin="", dtype="float32").save(root / "begun")
    model, asked = load_model(begun), PointerPrompt.load(begun)
    for deeper in model.model.visual.deepstack_merger_list:  # silent, until later training needs them
        nn.init.zeros_(deeper.linear_fc2.weight)
        nn.init.zeros_(deeper.linear_fc2.bias)
    model.multi_patch_pointer_head = None  # what starts with a head starts with a new one
    by_screen = on_screens(items)

    def reading(batch: list[GroundingItem]) -> Tensor:
        shown = [_shown(item, by_screen[id(item.image)], asked) for item in batch]
        return reading_loss(model, asked, [item.screenshot() for item in batch], torch.cat(shown))

    words = model.get_input_embeddings().weight
    train([*model.model.visual.parameters(), words], reading, items, reading_s, 2e-3)
    both = samples(items, asked, lambda item: asked.tokens.encode(f" {item.description.split()[1]}"))
    train(list(model.parameters()), cross_entropy(model, asked, both, items), items, naming_s, 2e-3)
    return checkpoint.write_model(model, root / "start", begun)


def on_screens(items: Sequence[GroundingItem]) -> dict[int, list[GroundingItem]]:
    """The items of each screen, by the identity of its image."""
    found: dict[int, list[GroundingItem]] = {}
    for item in items:
        found.setdefault(id(item.image), []).append(item)
    return found


def color_of(item: GroundingItem) -> int:
    """The number, 1 and up, of the colour that an item names."""
    return list(COLORS).index(item.description.split()[1]) + 1


def reading_loss(model: Any, asked: PointerPrompt, shots: Sequence[NDArray[np.uint8]], shown: Tensor) -> Tensor:
    """Cross-entropy of the colours (tokens,) that all images' tokens show, as words, 0 for none."""
    ids = [asked.tokens.pad_id, *(asked.tokens.encode(f" {color}")[0] for color in COLORS)]
    patches = torch.from_numpy(np.concatenate([asked.vision.patchify(shot) for shot in shots]))
    grids = torch.tensor([asked.vision.grid(shot) for shot in shots])
    features = torch.cat(list(model.model.get_image_features(patches, grids, return_dict=True).pooler_output))
    return nn.functional.cross_entropy(features @ model.get_input_embeddings().weight[ids].T, shown)


def _shown(item: GroundingItem, on_screen: Sequence[GroundingItem], asked: PointerPrompt) -> Tensor:
    """(tokens,) of a screen: 1 and up for the colour of the button under the middle of each, 0 for none."""
    (rows, columns), (width, height) = asked.grid(item.screenshot()), item.screen
    middles = [((c + 0.5) * width / columns, (r + 0.5) * height / rows) for r in range(rows) for c in range(columns)]
    colors = [color_of(other) for other in on_screen]
    boxes: list[Box] = [other.boxes[0] for other in on_screen]
    return torch.tensor(
        [sum(color * box.contains(x, y) for color, box in zip(colors, boxes, strict=True)) for x, y in middles]
    )


def samples(
    items: Sequence[GroundingItem],
    asked: PointerPrompt,
    answer: Callable[[GroundingItem], Sequence[int]],
    *,
    pointing: bool = True,
) -> dict[int, list[Sample]]:
    """Questions and the ids that answer them, by item: the one for coordinates, and `pointing` the one for a patch."""
    text = EngineGrounder(None, tokens=asked.tokens, vision=asked.vision)  # type: ignore[arg-type]  # writes prompts only
    found = {}
    for item in items:
        shot = item.screenshot()
        prompts = [text.prompt(item.description, shot).token_ids]
        prompts += [asked.question(item.description, shot)] if pointing else []
        found[id(item)] = [Sample(ids, (str(id(item.image)),), tuple(answer(item)), supervised=True) for ids in prompts]
    return found


def cross_entropy(
    model: nn.Module, asked: PointerPrompt, by_item: dict[int, list[Sample]], items: Sequence[GroundingItem]
) -> Callable[[list[GroundingItem]], Tensor]:
    """The loss of a batch of items: a question of each, in nats a token of the answer."""
    shots = {str(id(item.image)): item.screenshot() for item in items}
    collate, rng = Collator(asked.tokens, asked.vision, ImageCache(shots.__getitem__)), random.Random(0)

    def loss(batch: list[GroundingItem]) -> Tensor:
        micro = collate([rng.choice(by_item[id(item)]) for item in batch])
        logprobs, _ = response_logprobs(model, micro, asked.tokens.suppressed_ids)
        return -logprobs.sum() / micro.num_tokens

    return loss
