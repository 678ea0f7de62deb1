"""The ways in which the log-probabilities of the same tokens are computed, apart from the engine's.

"own" is the model's own forward pass: one step at a time, transformers' attention, its own places of images. The
others are the trainer's, in each layout of rows, with each kernel of attention, in float32 and under autocast.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_train.parity.recorded_conversation import Recorded
from dart_train.trainer.attention.kernels import at_hand
from dart_train.trainer.attention.model_attention import as_published
from dart_train.trainer.attention.segments import KernelName
from dart_train.trainer.batches.collator import Collator, ImageCache
from dart_train.trainer.batches.samples import Sample
from dart_train.trainer.image_features import ImageFeatures
from dart_train.trainer.policy_logprobs import response_logprobs, token_logprobs, tower_features
from dart_train.trainer.weights.model_loading import load_model

Logprobs = list[list[float]]
"""Of each token of each step."""

LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "separate": {"share_prompts": False, "merge_prefixes": False},
    "merged": {"share_prompts": False},
    "branched": {},
    "packed": {"pack_rows": True},
    "left": {"padding_side": "left"},
}
"""A row for each step; steps that extend one another as one row; rollouts of a group as its branches; without padding;
filled up on the left, not the right. All but the first run each image through the tower once, as the trainer does."""
MICRO_BATCH_TOKENS = 16384


@dataclass(frozen=True, slots=True)
class Way:
    """One way, such as "merged flex_attention bfloat16", with the log-probabilities of each token of each step."""

    name: str
    dtype: torch.dtype
    logprobs: Logprobs


def all_ways(
    model_dir: str | Path,
    recorded: Recorded,
    *,
    device: torch.device,
    temperature: float,
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16),
) -> Iterator[Way]:
    """Every way, the model's own first, in float32."""
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
    model = load_model(model_dir).to(device).eval().requires_grad_(False)
    yield Way("own", torch.float32, _own(model, recorded, tokens, vision, temperature))
    images = ImageCache(recorded.screens.__getitem__)
    for dtype in dtypes:
        mixed: AbstractContextManager[Any] = nullcontext()
        if dtype is not torch.float32:
            mixed = torch.autocast(device.type, dtype=dtype)
        for kernel in at_hand(device, dtype):
            for layout, options in LAYOUTS.items():
                words = [
                    layout,
                    *([] if kernel == "sdpa" else [kernel]),
                    *([] if dtype is torch.float32 else [str(dtype).removeprefix("torch.")]),
                ]
                collator = Collator(tokens, vision, images, distinct_images=layout != "separate", **options)
                with mixed:
                    found = _trainers(model, collator, recorded.samples, tokens, kernel, temperature)
                yield Way(" ".join(words), dtype, found)


@torch.no_grad()
def _trainers(
    model: Any,
    collator: Collator,
    samples: Sequence[Sample],
    tokens: ModelTokens,
    kernel: KernelName,
    temperature: float,
) -> Logprobs:
    """By the trainer's forward pass, through its cache of image features."""
    features = ImageFeatures(partial(tower_features, model, kernel=kernel), trainable=False)
    found: Logprobs = [[] for _ in samples]
    for micro in collator.micro_batches(samples, MICRO_BATCH_TOKENS):
        batch = micro.to(model.device)
        logprobs, _ = response_logprobs(
            model, batch, tokens.suppressed_ids, temperature=temperature, features=features, kernel=kernel
        )
        for row, place in enumerate(batch.sample_index.tolist()):
            found[place] = logprobs[row][batch.mask[row]].tolist()
    return found


@torch.no_grad()
def _own(model: Any, recorded: Recorded, tokens: ModelTokens, vision: VisionSpec, temperature: float) -> Logprobs:
    """By the model's own forward pass, one step at a time."""
    found = []
    with as_published(model):
        for sample in recorded.samples:
            ids = torch.tensor([[*sample.prompt_ids, *sample.response_ids]])
            images = [recorded.screens[name] for name in sample.image_hashes]
            values = {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "mm_token_type_ids": torch.from_numpy(tokens.mm_token_type_ids(ids.numpy())),
                "pixel_values": torch.from_numpy(np.concatenate([vision.patchify(image) for image in images])),
                "image_grid_thw": torch.tensor([vision.grid(image) for image in images]),
            }
            count = len(sample.response_ids)
            values = {name: value.to(model.device) for name, value in values.items()}
            logits = model(**values, logits_to_keep=count + 1).logits[0, :-1]
            chosen = values["input_ids"][0, -count:]
            logprobs, _ = token_logprobs(logits, chosen, tokens.suppressed_ids, temperature=temperature)
            found.append(logprobs.tolist())
    return found
