"""Makes the fingerprint of weights with the model that holds them; see `dart_train.core.fingerprint`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_train.core.fingerprint import LENGTH, Fingerprint, drawn_image, fingerprint_prompts


def fingerprint_of(model: Any, model_dir: str | Path) -> Fingerprint:
    """Return what a model, put into evaluation mode meanwhile, answers to the fixed prompts."""
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
    prompts, sizes = fingerprint_prompts(tokens, vision)
    images = _images(model, vision, [size for own in sizes for size in own])
    training = model.training
    model.eval()
    try:
        response_ids, logprobs = _answers(model, prompts, tokens, images)
    finally:
        model.train(training)
    return Fingerprint(
        prompts=prompts,
        response_ids=response_ids,
        logprobs=logprobs,
        suppressed_ids=tokens.suppressed_ids,
        images=sizes,
    )


def _images(model: Any, vision: VisionSpec, sizes: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
    """Return what a model takes in of all prompts' images."""
    images = [drawn_image(*size) for size in sizes]
    return {
        "pixel_values": torch.from_numpy(np.concatenate([vision.patchify(image) for image in images])).to(model.device),
        "image_grid_thw": torch.tensor([vision.grid(image) for image in images], device=model.device),
    }


@torch.no_grad()
def _answers(
    model: Any, prompts: Sequence[Sequence[int]], tokens: ModelTokens, images: dict[str, Tensor]
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[float, ...], ...]]:
    """Return each prompt's likeliest next tokens and their log-probabilities.

    A plain forward pass of all prompts for each further token: ranks that hold parts of a model gather all of it anew
    in every pass. Rows are filled up on the right, where nothing that is read looks.
    """
    rows = [list(prompt) for prompt in prompts]
    of_rows: list[list[float]] = [[] for _ in rows]
    for _ in range(LENGTH):
        lengths = torch.tensor([len(row) for row in rows], device=model.device)
        longest = int(lengths.max())
        filled = [row + [tokens.pad_id] * (longest - len(row)) for row in rows]
        ids = torch.tensor(filled, device=model.device)
        mask = (torch.arange(longest, device=model.device) < lengths[:, None]).long()
        last, places = (lengths - 1).unique(return_inverse=True)  # the head runs on no other position
        types = (ids == tokens.image_pad_id).long()
        found = model(input_ids=ids, attention_mask=mask, mm_token_type_ids=types, logits_to_keep=last, **images)
        logits = found.logits[torch.arange(len(rows), device=model.device), places].float()
        logits[:, list(tokens.suppressed_ids)] = -torch.inf
        best = logits.log_softmax(-1).max(-1)
        for row, chosen, token, logprob in zip(rows, of_rows, best.indices.tolist(), best.values.tolist(), strict=True):
            row.append(token)
            chosen.append(logprob)
    response_ids = tuple(tuple(row[len(prompt) :]) for row, prompt in zip(rows, prompts, strict=True))
    return response_ids, tuple(map(tuple, of_rows))
