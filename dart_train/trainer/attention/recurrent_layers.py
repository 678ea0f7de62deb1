"""Recurrent layers by segments: a sample's memory in a layer never reaches another sample.

A layer of attention needs to know which tokens see which; a recurrent one needs to know where memory begins. A plain
row, or one that is packed, begins with none. A branch begins with what its prompt has left, which is computed once and
carried to each of its branches, and their gradients come back together; so all layouts are exact, merged rows too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dart_agent.engines.embedded import gated_delta
from dart_train.trainer.attention.kernels import Attention
from dart_train.trainer.attention.segments import Segment


def take_over_recurrent(text_model: Any) -> None:
    """Let the recurrent layers of a text model go by segments, where a pass is given any. Idempotent."""
    for layer in text_model.layers:
        mixer = getattr(layer, "linear_attn", None)
        if mixer is not None and "forward" not in vars(mixer):
            mixer.forward = MethodType(_forward, mixer)


def _forward(self: Any, hidden_states: Tensor, segments: Attention | None = None, **others: Any) -> Tensor:
    """`Qwen3_5GatedDeltaNet.forward` by segments; without any, transformers' own."""
    if segments is None:
        return type(self).forward(self, hidden_states, **others)
    hidden, device = hidden_states.flatten(0, 1), hidden_states.device
    parts: list[_Part] = segments.layout.prepared(
        "recurrent", device, lambda: parts_of(segments.layout.segments, len(hidden), self.conv_kernel_size - 1, device)
    )
    # One more place, which brings nothing: what is before a beginning, and what segments are filled up with.
    inputs, beta, decay = (F.pad(values, (0, 0, 0, 1)) for values in gated_delta.project(self, hidden))
    mixed = hidden.new_zeros(len(hidden) + 1, self.num_v_heads, self.head_v_dim)
    left: list[Tensor] = []
    for part in parts:
        memory = None if part.prompts is None else torch.cat(left)[part.prompts]
        found, after = gated_delta.recur(self, inputs[part.inputs], beta[part.places], decay[part.places], memory)
        real = part.places < len(hidden)
        mixed = mixed.index_copy(0, part.places[real], found[real].to(mixed.dtype))
        if part.prompts is None:
            left.append(after)
    return gated_delta.finish(self, mixed[:-1], hidden).view_as(hidden_states)


@dataclass(frozen=True, slots=True)
class _Part:
    """Segments of similar length that one call computes.

    Attributes:
        places: (N, L) of their tokens.
        inputs: (N, kernel - 1 + L) of the tokens before and theirs.
        prompts: (N,) number of the prompt that each is a branch of, in the order of the parts before; None for those
            that begin with no memory.
    """

    places: Tensor
    inputs: Tensor
    prompts: Tensor | None


def parts_of(segments: Sequence[Segment], places: int, before: int, device: torch.device) -> list[_Part]:
    """Those that begin first, then branches; of each kind, lengths differ by less than twice.

    Args:
        segments: of a micro-batch.
        places: tokens of the micro-batch; also the place that brings nothing.
        before: tokens before its own that the convolution of a token reaches.
        device: of the tensors.
    """
    found: list[_Part] = []
    numbers: dict[tuple[int, int], int] = {}

    def order(segment: Segment) -> tuple[bool, int]:
        return segment.seen > 0, segment.length.bit_length()

    for (branches, _), similar in groupby(sorted(segments, key=order), key=order):
        same = list(similar)
        longest = max(segment.length for segment in same)
        inputs = np.full((len(same), before + longest), places)
        for row, segment in zip(inputs, same, strict=True):
            row[before : before + segment.length] = np.arange(segment.start, segment.stop)
            reach = min(before, segment.seen)
            row[before - reach : before] = np.arange(segment.seen_stop - reach, segment.seen_stop)
        prompts = None
        if branches:
            prompts = torch.tensor([numbers[segment.seen_start, segment.seen_stop] for segment in same], device=device)
        else:
            numbers |= {(segment.start, segment.stop): len(numbers) + at for at, segment in enumerate(same)}
        there = torch.from_numpy(inputs).to(device)
        found.append(_Part(there[:, before:], there, prompts))
    return found
