"""A micro-batch of one long text row, without screenshots, for measurements of the language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_train.trainer.batches.collator import Collator, ImageCache, MicroBatch
from dart_train.trainer.batches.samples import Sample

RESPONSE_SHARE = 16
"""One token in this many belongs to the response."""


def text_batch(
    model_dir: str | Path, tokens: ModelTokens, *, length: int, context: tuple[int, int] = (0, 1)
) -> MicroBatch:
    """Return one row of `length` tokens, of which a sixteenth are a response; the same on every call.

    Args:
        model_dir: directory with the processor's settings.
        tokens: its tokenizer.
        length: tokens of the row, at least 32.
        context: place of this rank in its context group, and the number of its ranks: the row's slice is returned.
    """
    text = tokens.encode("abcdefghijklmnopqrstuvwxyz0123456789")
    ids = np.random.default_rng(0).choice(text, length).tolist()
    responses = max(length // RESPONSE_SHARE, 1)
    sample = Sample(tuple(ids[:-responses]), (), tuple(ids[-responses:]), (-1.0,) * responses)
    vision = VisionSpec.from_dir(model_dir)
    collator = Collator(tokens, vision, ImageCache(_no_screens), max_length=None, context=context)
    (micro,) = collator.micro_batches([sample], length)
    return micro


def _no_screens(name: str) -> Any:
    raise LookupError(f"a text row has no screenshot {name}")
