"""Context parallelism: the ranks of a group share rows, each with a slice of their tokens (after DeepSpeed-Ulysses).

What goes token by token (embeddings, norms, linear layers, experts, the head) runs on a rank's slice alone. Where
tokens are mixed, an all-to-all turns slices of tokens with all heads into all tokens with a part of the heads, and back
afterwards: attention and recurrent layers then compute what they compute on one rank, by the same kernels, for their
heads. Keys and values whose heads are fewer than the ranks are repeated, so that each rank has the one that its queries
belong to.

Invariants:
    - Values and gradients equal those of one rank, up to rounding. The gradients of a group's ranks add up to that of
      the row: each rank has the part that its own tokens and heads give.
    - All ranks of a group call the same exchanges in the same order, also in backward passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ContextGroup:
    """This process, `place` from 0, among the `count` ranks that share rows and meet in a process group."""

    place: int
    count: int
    group: dist.ProcessGroup

    @classmethod
    def of(cls, place: int, count: int, group: dist.ProcessGroup | None) -> ContextGroup | None:
        """Return the ranks that share rows; None where there is no group of them, and rows are whole."""
        return None if group is None else cls(place, count, group)

    def whole_rows(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Turn slices of tokens with all heads into all tokens with this rank's heads, in one exchange.

        Args:
            parts: (l, heads, width) each, of one type and width.

        Returns:
            (count * l, heads / count, width) of each; one head where there are fewer heads than ranks.
        """
        cut = [self._by_rank(part) for part in parts]
        heads = [part.shape[2] for part in cut]
        return self._exchanged(torch.cat(cut, 2).transpose(0, 1)).flatten(0, 1).split(heads, 1)

    def own_tokens(self, mixed: Tensor) -> Tensor:
        """(count * l, heads / count, width) of all tokens -> (l, heads, width): the way back of `whole_rows`."""
        return self._exchanged(mixed.unflatten(0, (self.count, -1))).transpose(0, 1).flatten(1, 2)

    def all_responses(self, values: Tensor, places: Tensor, total: int) -> Tensor:
        """Return (..., total) values of all ranks, of which this one has (..., m) at `places`.

        Every rank goes on with all values; the gradient of each goes to the rank that it came from, once.
        """
        return _Gathered.apply(values, places, total, self.group)

    def _by_rank(self, part: Tensor) -> Tensor:
        """(l, heads, width) -> (l, count, heads of each rank, width)."""
        if part.shape[1] < self.count:
            part = part.repeat_interleave(self.count // part.shape[1], 1)
        return part.unflatten(1, (self.count, -1))

    def _exchanged(self, parts: Tensor) -> Tensor:
        """(count, ...) parts, one for each rank -> those that each rank had for this one."""
        return _Exchanged.apply(parts, self.group)


class _Exchanged(torch.autograd.Function):
    """An all-to-all of equal parts; its backward pass is one too."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchange(parts, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _exchange(gradients[0], ctx.group), None


def _exchange(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    sent = parts.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received


class _Gathered(torch.autograd.Function):
    """Values of all ranks at their places; the gradient is that of this rank's own."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, total: int, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(places)
        found = values.new_zeros((*values.shape[:-1], total)).index_copy(-1, places, values)
        dist.all_reduce(found, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (places,) = ctx.saved_tensors
        return gradients[0].index_select(-1, places), None, None, None
