"""Makes the fingerprint of weights with the model that holds them; see `dart_train.core.fingerprint`."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_train.core.fingerprint import LENGTH, Fingerprint, drawn_image, fingerprint_prompts


def fingerprint_of(model: Any, model_dir: str | Path) -> Fingerprint:
    """Return what a model, put into evaluation mode meanwhile, answers to the fixed prompts."""
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
    prompts, sizes = fingerprint_prompts(tokens, vision)
    training = model.training
    model.eval()
    try:
        answers = [
            _answer(model, ids, tokens, _images(model, vision, own)) for ids, own in zip(prompts, sizes, strict=True)
        ]
    finally:
        model.train(training)
    return Fingerprint(
        prompts=prompts,
        response_ids=tuple(ids for ids, _ in answers),
        logprobs=tuple(logprobs for _, logprobs in answers),
        suppressed_ids=tokens.suppressed_ids,
        images=sizes,
    )


def _images(model: Any, vision: VisionSpec, sizes: tuple[tuple[int, int], ...]) -> dict[str, torch.Tensor]:
    """Return what a model takes in of a prompt's images."""
    if not sizes:
        return {}
    images = [drawn_image(*size) for size in sizes]
    return {
        "pixel_values": torch.from_numpy(np.concatenate([vision.patchify(image) for image in images])).to(model.device),
        "image_grid_thw": torch.tensor([vision.grid(image) for image in images], device=model.device),
    }


@torch.no_grad()
def _answer(
    model: Any, prompt: tuple[int, ...], tokens: ModelTokens, images: dict[str, torch.Tensor]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The likeliest next tokens, by a plain forward pass for each of them."""
    ids = list(prompt)
    logprobs = []
    for _ in range(LENGTH):
        row = torch.tensor([ids], device=model.device)
        types = (row == tokens.image_pad_id).long()
        found = model(input_ids=row, attention_mask=torch.ones_like(row), mm_token_type_ids=types, **images)
        logits = found.logits[0, -1].float()
        logits[list(tokens.suppressed_ids)] = -torch.inf
        logprob, token = logits.log_softmax(-1).max(-1)
        ids.append(int(token))
        logprobs.append(float(logprob))
    return tuple(ids[len(prompt) :]), tuple(logprobs)
