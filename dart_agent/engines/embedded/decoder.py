"""Decoder: the text layers of a Qwen-VL model with a cache allocated once per batch.

The arithmetic is that of `Qwen2VLTextModel`, `Qwen2_5_VLTextModel`, `Qwen3VLTextModel` and `Qwen3_5TextModel`, on the
live parameters of their submodules; what is left out is the bookkeeping around it (mask building, cache growth, hooks),
which for a small model costs more than the arithmetic. Qwen3-VL differs in two things: queries and keys are normalised
by head, and features of deeper vision layers are added to the images' places after the first text layers. Qwen3.5
normalises so too, rotates a part of each head, gates what attention gives, and has recurrent layers. Of mixtures of
experts the model's own module runs, router included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dart_agent.engines.embedded import gated_delta
from dart_gym.core.errors import ConfigurationError


@dataclass(slots=True)
class DecodeState:
    """The cache of a batch, for T = prompt + room positions.

    Attributes:
        keys: one (B, key-value heads, T, head size) per layer; rotated. Of a recurrent layer instead what the last
            tokens brought to its convolution, (B, kernel - 1, channels).
        values: of the same shape. Of a recurrent layer its memory, (B, heads, key size, value size).
        cos: (B, T, 1, rotated size) of the rotary embedding, future positions included.
        visible: (B, 1, 1, T), True where a later token may look.
    """

    keys: list[Tensor]
    values: list[Tensor]
    cos: Tensor
    sin: Tensor
    visible: Tensor
    length: int = 0

    def take(self, rows: Tensor) -> DecodeState:
        """The cache of some rows (N,) of the batch, each with a copy of its own."""
        keys, values = ([part[rows] for part in parts] for parts in (self.keys, self.values))
        return DecodeState(keys, values, self.cos[rows], self.sin[rows], self.visible[rows], self.length)


class Decoder:
    """Runs prompts, then single tokens, through the text layers. Reads the live parameters on every call."""

    def __init__(self, text_model: Any) -> None:
        """Wrap the `language_model` of a Qwen-VL model."""
        self._model = text_model
        config = text_model.config
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        if getattr(config, "use_sliding_window", False) and config.sliding_window:
            raise ConfigurationError(
                "models with sliding-window attention are not supported by the embedded engine: set use_sliding_window "
                "to false in config.json if it was trained without, or serve it through a vLLM server"
            )

    def prefill(
        self,
        embeds: Tensor,
        positions: Tensor,
        mask: Tensor,
        room: int,
        deep: Sequence[Tensor] = (),
        before: Sequence[list[list[Tensor]] | None] = (),
    ) -> tuple[DecodeState, Tensor]:
        """Run left-padded prompts.

        Args:
            embeds: (B, L, hidden) with the images' embeddings in place.
            positions: (3, B, L) rotary positions.
            mask: (B, L), True for real tokens.
            room: how many tokens will be appended at most.
            deep: (B, L, hidden) each, added to the output of the first layers, zero but on images.
            before: of each row the keys and values, by layer, of tokens that were read before these; none by default.

        Returns:
            The state, and the last hidden state (B, hidden) after the final norm.
        """
        batch, length, _ = embeds.shape
        attends = [not hasattr(layer, "linear_attn") for layer in self._model.layers]
        places = [one[0][attends.index(True)].shape[1] if one else 0 for one in before] or [0] * batch
        past = max(places)  # columns of the cache before these tokens, filled from the right
        positions = F.pad(positions, (past, 0))
        ahead = positions[:, :, -1:] + torch.arange(1, room + 1, device=positions.device)
        cos, sin = self._rotary(embeds, torch.cat([positions, ahead], -1))
        half = sin.shape[-1] // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        shape = (batch, self._kv_heads, past + length + room, self._head_size)
        visible = F.pad(F.pad(mask, (past, 0)), (0, room), value=True)[:, None, None]
        keys, values = zip(*(_empty_cache(layer, embeds, shape) for layer in self._model.layers), strict=True)
        state = DecodeState(
            keys=list(keys),
            values=list(values),
            cos=cos[:, :, None],
            sin=sin[:, :, None],
            visible=visible,
            length=past,
        )
        for row, (one, size) in enumerate(zip(before, places, strict=False)):
            visible[row, :, :, past - size : past] = True
            for parts, kept in zip((state.keys, state.values), one or (), strict=False):
                for part, own, attending in zip(parts, kept, attends, strict=True):
                    (part[row, :, past - size : past] if attending else part[row]).copy_(own)
        causal = torch.ones(length, past + length, dtype=torch.bool, device=embeds.device).tril(past)
        # A pad sees itself only: a row of nothing but masked entries would be NaN.
        own = causal.triu(past)
        return state, self._run(embeds, state, (visible[..., : past + length] & causal) | own, deep, mask[..., None])

    def _rotary(self, embeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (B, T, rotated size) of positions (3, B, T).

        Qwen2-VL and Qwen2.5-VL of older transformers (5.16 is one) give them for each of the three axes, and choose
        the axis of each section of a head only in attention.
        """
        cos, sin = self._model.rotary_emb(embeds, positions)
        if cos.dim() == 3:
            return cos, sin
        sections = [*self._model.config.rope_parameters["mrope_section"]] * 2
        return _chosen_axes(cos, sections), _chosen_axes(sin, sections)

    def step(self, state: DecodeState, tokens: Tensor) -> Tensor:
        """Append one token (B,) to every row; returns the last hidden state (B, hidden) after the final norm."""
        embeds = self._model.embed_tokens(tokens)[:, None]
        return self._run(embeds, state, state.visible[..., : state.length + 1])

    def _run(
        self, hidden: Tensor, state: DecodeState, mask: Tensor, deep: Sequence[Tensor] = (), real: Tensor | None = None
    ) -> Tensor:
        """New positions through all layers, padding where `real` (B, L, 1) is not; fills the cache and moves it on."""
        start, end = state.length, state.length + hidden.shape[1]
        cos, sin = state.cos[:, start:end], state.sin[:, start:end]
        for index, layer in enumerate(self._model.layers):
            normed = rms_norm(layer.input_layernorm, hidden)
            if hasattr(layer, "linear_attn"):
                hidden = hidden + _recur(layer.linear_attn, normed, state, index, real)
            else:
                keys, values = state.keys[index][:, :, :end], state.values[index][:, :, :end]
                hidden = hidden + self._attend(layer.self_attn, normed, cos, sin, keys, values, mask)
            normed = rms_norm(layer.post_attention_layernorm, hidden)
            hidden = hidden + layer.mlp(normed)
            if index < len(deep):
                hidden = hidden + deep[index]
        state.length = end
        return rms_norm(self._model.norm, hidden[:, -1])

    def _attend(
        self, attention: Any, hidden: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, mask: Tensor
    ) -> Tensor:
        """Compute self-attention of the new positions over the cache, after writing them to its end."""
        batch, new, _ = hidden.shape
        query = attention.q_proj(hidden).view(batch, new, self._heads, -1)
        gate = query[..., self._head_size :]  # of Qwen3.5 alone
        query = query[..., : self._head_size]
        key = attention.k_proj(hidden).view(batch, new, self._kv_heads, self._head_size)
        if hasattr(attention, "q_norm"):
            query, key = rms_norm(attention.q_norm, query), rms_norm(attention.k_norm, key)
        query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
        value = attention.v_proj(hidden).view(batch, new, self._kv_heads, self._head_size)
        keys[:, :, -new:] = key.transpose(1, 2)
        values[:, :, -new:] = value.transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=self._kv_heads != self._heads
        )
        mixed = mixed.transpose(1, 2)
        if gate.shape[-1]:
            mixed = mixed * gate.sigmoid()
        return attention.o_proj(mixed.reshape(batch, new, -1))


def _empty_cache(layer: Any, like: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Room for a layer's keys and values, or what a recurrent layer remembers before the first token: nothing."""
    if not hasattr(layer, "linear_attn"):
        return like.new_zeros(shape), like.new_zeros(shape)  # no number may come of what nobody wrote
    mixer, rows = layer.linear_attn, shape[0]
    memory = rows, mixer.num_v_heads, mixer.head_k_dim, mixer.head_v_dim
    recent = like.new_zeros(rows, mixer.conv_kernel_size - 1, mixer.conv_dim)
    return recent, torch.zeros(memory, device=like.device)


def _recur(mixer: Any, hidden: Tensor, state: DecodeState, index: int, real: Tensor | None) -> Tensor:
    """A recurrent layer on new positions; of padding, which is where `real` (B, L, 1) is False, nothing stays."""
    inputs, beta, decay = gated_delta.project(mixer, hidden)
    recent = state.keys[index]
    if real is not None:
        inputs = inputs * real
        beta = beta * real
        decay = decay * real
    inputs = torch.cat([recent, inputs], 1)
    if real is not None:  # what was read before stands directly before the first token that is no padding
        first = (~real).sum(1) + torch.arange(recent.shape[1], device=recent.device)
        inputs[:, : recent.shape[1]] = 0
        inputs.scatter_(1, first[..., None].expand_as(recent), recent)
    mixed, state.values[index] = gated_delta.recur(mixer, inputs, beta, decay, state.values[index])
    state.keys[index] = inputs[:, -state.keys[index].shape[1] :]
    return gated_delta.finish(mixer, mixed, hidden)


def rms_norm(module: Any, hidden: Tensor) -> Tensor:
    """A `Qwen2RMSNorm`, or Qwen3.5's around zero; the fused kernel where it computes in the same precision."""
    if hidden.dtype is not torch.float32:
        return module(hidden)
    if hasattr(module, "variance_epsilon"):
        return F.rms_norm(hidden, (hidden.shape[-1],), module.weight, module.variance_epsilon)
    return F.rms_norm(hidden, (hidden.shape[-1],), 1.0 + module.weight, module.eps)


def _chosen_axes(values: Tensor, sections: list[int]) -> Tensor:
    """From (3, B, T, size) the values (B, T, size), whose sections are of the three axes in turn."""
    return torch.cat([part[number % 3] for number, part in enumerate(values.split(sections, -1))], -1)


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of as much of each head as is rotated: halves swapped, the first half's sign being in `sin`."""
    size = cos.shape[-1]
    if size == states.shape[-1]:
        return torch.addcmul(states * cos, states.roll(size // 2, -1), sin)
    return torch.cat([_rotate(states[..., :size], cos, sin), states[..., size:]], -1)
