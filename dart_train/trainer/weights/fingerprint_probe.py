"""Makes the fingerprint of weights with the model that holds them; see `dart_train.core.fingerprint`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dart_agent.models.model_tokens import ModelTokens
from dart_train.core.fingerprint import LENGTH, Fingerprint, fingerprint_prompts


def fingerprint_of(model: Any, model_dir: str | Path) -> Fingerprint:
    """What a model answers to the fixed prompts.

    Args:
        model: a Qwen-VL `PreTrainedModel`; it is put into evaluation mode meanwhile.
        model_dir: of its tokenizer.
    """
    tokens = ModelTokens.load(model_dir)
    prompts = fingerprint_prompts(tokens)
    training = model.training
    model.eval()
    try:
        answers = [_answer(model, ids, tokens.suppressed_ids) for ids in prompts]
    finally:
        model.train(training)
    return Fingerprint(
        prompts=prompts,
        response_ids=tuple(ids for ids, _ in answers),
        logprobs=tuple(logprobs for _, logprobs in answers),
        suppressed_ids=tokens.suppressed_ids,
    )


@torch.no_grad()
def _answer(
    model: Any, prompt: tuple[int, ...], suppressed: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The likeliest next tokens, by a plain forward pass for each of them."""
    ids = list(prompt)
    logprobs = []
    for _ in range(LENGTH):
        row = torch.tensor([ids], device=model.device)
        logits = model(input_ids=row, attention_mask=torch.ones_like(row)).logits[0, -1].float()
        logits[list(suppressed)] = -torch.inf
        logprob, token = logits.log_softmax(-1).max(-1)
        ids.append(int(token))
        logprobs.append(float(logprob))
    return tuple(ids[len(prompt) :]), tuple(logprobs)
