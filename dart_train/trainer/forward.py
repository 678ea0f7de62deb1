"""The forward pass of training: log-probabilities of responses under the model, with the least work.

The output layer runs on the positions that predict response tokens only, and the vision tower on each distinct image
once. Qwen's published classes are used by their public parts: `get_image_features`, embeddings, `model`, `lm_head`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dart_train.trainer.collate import MicroBatch
from dart_train.trainer.losses import token_logprobs


def response_logprobs(model: Any, batch: MicroBatch, suppressed_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each response token.

    Args:
        model: a `Qwen2_5_VLForConditionalGeneration`.
        batch: a micro-batch on the model's device.
        suppressed_ids: tokens that the engine never samples.

    Returns:
        log-probabilities and entropies, both (S, T) float32 with gradient; 0 where `batch.mask` is False.
    """
    hidden = model.model(
        inputs_embeds=_embeddings(model, batch),
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
    ).last_hidden_state
    predicting = hidden.flatten(0, 1)[batch.predict_index]
    logprobs, entropies = token_logprobs(model.lm_head(predicting), batch.response_ids, suppressed_ids)
    return _unflatten(logprobs, batch.mask), _unflatten(entropies, batch.mask)


def _embeddings(model: Any, batch: MicroBatch) -> Tensor:
    """(B, L, hidden) embeddings of tokens, those of images in place of their pads."""
    embeddings = model.get_input_embeddings()(batch.input_ids)
    if batch.pixel_values is None or batch.image_order is None:
        return embeddings
    features = model.model.get_image_features(batch.pixel_values, batch.image_grid_thw, return_dict=True).pooler_output
    in_order = torch.cat([features[place] for place in batch.image_order.tolist()])
    pads = batch.mm_token_type_ids.bool().unsqueeze(-1)
    return embeddings.masked_scatter(pads, in_order.to(embeddings.dtype))


def _unflatten(values: Tensor, mask: Tensor) -> Tensor:
    """(M,) values into the (S, T) places where `mask` is True."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
