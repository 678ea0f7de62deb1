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
from dart_train.trainer.attention.context_group import ContextGroup
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
    hidden, context = hidden_states.flatten(0, 1), segments.context
    brought = gated_delta.project(self, hidden)
    if context is None:
        mixed = _mixed(self, segments, *brought, self.conv1d.weight)
    else:
        mixed = context.own_tokens(_mixed(self, segments, *_of_own_heads(self, context, *brought)))
    return gated_delta.finish(self, mixed, hidden).view_as(hidden_states)


def _mixed(module: Any, segments: Attention, inputs: Tensor, beta: Tensor, decay: Tensor, weight: Tensor) -> Tensor:
    """(tokens, heads, value size) mixed values of all segments, of what tokens bring and the convolution's weight."""
    count, device = len(inputs), inputs.device
    parts: list[_Part] = segments.layout.prepared(
        "recurrent", device, lambda: parts_of(segments.layout.segments, count, module.conv_kernel_size - 1, device)
    )
    # One more place, which brings nothing: what is before a beginning, and what segments are filled up with.
    inputs, beta, decay = (F.pad(values, (0, 0, 0, 1)) for values in (inputs, beta, decay))
    mixed = inputs.new_zeros(count + 1, beta.shape[1], module.head_v_dim)
    left: list[Tensor] = []
    for part in parts:
        memory = None if part.prompts is None else torch.cat(left)[part.prompts]
        found, after = gated_delta.recur(
            module, inputs[part.inputs], beta[part.places], decay[part.places], memory, weight=weight
        )
        real = part.places < count
        mixed = mixed.index_copy(0, part.places[real], found[real].to(mixed.dtype))
        if part.prompts is None:
            left.append(after)
    return mixed[:-1]


def _of_own_heads(
    module: Any, context: ContextGroup, inputs: Tensor, beta: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All tokens' inputs, `beta` and `decay` for this rank's heads, and these heads' weight of the convolution."""
    sizes = [module.key_dim, module.key_dim, module.value_dim]
    # Channels one by one, those of a head beside one another: each rank gets whole heads of all three.
    asked = context.whole_rows(*(part[..., None] for part in inputs.split(sizes, -1)))
    wide = torch.promote_types(beta.dtype, decay.dtype)  # exact for both
    (kept,) = context.whole_rows(torch.stack([beta.to(wide), decay.to(wide)], -1))
    weight = torch.cat([part.chunk(context.count)[context.place] for part in module.conv1d.weight.split(sizes)])
    own_beta, own_decay = kept.unbind(-1)
    return torch.cat(asked, 1)[..., 0], own_beta.to(beta.dtype), own_decay.to(decay.dtype), weight


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
