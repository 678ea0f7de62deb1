"""Decoder: Qwen2.5-VL's layers with a key-value cache of known size, by the model's own submodules.

Thin first version: the model's own forward with its own cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class DecodeState:
    """The cache of a batch and where its rows stand."""

    cache: Any
    positions: Tensor
    mask: Tensor


class Decoder:
    """Prefill and single steps of a batch."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def refresh(self) -> None:
        """Forget what was derived from the weights."""

    def embed_patches(self, patches: Tensor, grids: Sequence[tuple[int, int, int]]) -> Tensor:
        """Vision tower: patches of several images to their tokens' embeddings (sum of tokens, hidden)."""
        return self._model.model.visual(patches, grid_thw=torch.tensor(grids)).pooler_output

    def prefill(self, embeds: Tensor, positions: Tensor, mask: Tensor, room: int) -> tuple[DecodeState, Tensor]:
        """Run the prompts; returns the state and the last hidden state (B, hidden)."""
        out = self._model.model.language_model(
            inputs_embeds=embeds, position_ids=positions, attention_mask=mask.long(), use_cache=True
        )
        return DecodeState(out.past_key_values, positions[:, :, -1], mask.long()), out.last_hidden_state[:, -1]

    def step(self, state: DecodeState, tokens: Tensor) -> Tensor:
        """Append one token (B,) to every row; returns the last hidden state (B, hidden)."""
        state.positions = state.positions + 1
        state.mask = torch.cat([state.mask, state.mask.new_ones(len(tokens), 1)], 1)
        out = self._model.model.language_model(
            inputs_embeds=self._model.model.language_model.embed_tokens(tokens)[:, None],
            position_ids=state.positions[:, :, None],
            attention_mask=state.mask,
            past_key_values=state.cache,
            use_cache=True,
        )
        return out.last_hidden_state[:, -1]
