"""The processes that train together: this process's place among them, and the messages between them.

`torchrun` starts them, `transformers.TrainingArguments` joins them (gloo on CPUs, NCCL on GPUs). One process alone is
the same code with nothing to tell.

Invariants:
    - Only the main rank talks to the data manager's database and writes published versions; it tells the others.
    - Every call is made by all ranks, in the same order: each is a point where they wait for one another. Nothing else
      between the ranks may be waited for longer than the process group's time limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

_T = TypeVar("_T")
BUCKET = 1 << 25
"""Numbers of gradient that travel at a time: 128 MiB in float32."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process, `rank` from 0, the main one, among `count`, of which `per_node` are on each node (0: all).

    `group`: the process group that they meet in; None for the one that training uses.
    """

    rank: int = 0
    count: int = 1
    per_node: int = 0
    group: dist.ProcessGroup | None = None

    @classmethod
    def current(cls) -> Ranks:
        """Those of the process group that was joined; alone without one."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_WORLD_SIZE", "0")))

    @property
    def is_main(self) -> bool:
        """Return whether this is the rank that talks to the outside."""
        return self.rank == 0

    @property
    def node(self) -> int:
        """Number of this rank's node, from 0."""
        return self.rank // (self.per_node or self.count)

    @property
    def several_nodes(self) -> bool:
        """Return whether ranks are on several nodes, which see the files of their own alone."""
        return 0 < self.per_node < self.count

    @property
    def is_first_of_node(self) -> bool:
        """Return whether this is the rank that does what is done once on each node."""
        return self.rank % (self.per_node or self.count) == 0

    def in_groups(self, size: int) -> tuple[Ranks, Ranks]:
        """Cut the ranks into groups of neighbours. Called by all.

        Returns:
            The ranks of this one's group, and those that have this one's place in each of the groups.
        """
        if size == 1:
            return Ranks(), self
        groups = [dist.new_group(range(first, first + size)) for first in range(0, self.count, size)]
        across = [dist.new_group(range(place, self.count, size)) for place in range(size)]
        group, place = divmod(self.rank, size)
        return Ranks(place, size, group=groups[group]), Ranks(group, len(groups), group=across[place])

    def share(self, value: _T) -> _T:
        """The main rank's value; what the others pass in does not matter."""
        if self.count == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, group=self.group, group_src=0)
        return box[0]

    def gather(self, value: _T) -> list[_T]:
        """Every rank's value, in their order, on every rank."""
        if self.count == 1:
            return [value]
        found: list[_T] = [value] * self.count
        dist.all_gather_object(found, value, group=self.group)
        return found

    def of_nodes(self, value: _T) -> list[_T]:
        """The value of each node's first rank; what the others pass in does not matter."""
        return self.gather(value)[:: self.per_node or self.count]

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.count > 1:
            dist.barrier(group=self.group)

    def mean(self, value: Tensor) -> Tensor:
        """Mean of a tensor over the ranks."""
        if self.count == 1:
            return value
        total = value.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total / self.count

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace gradients by their mean over the ranks, sharded ones are that already; once per optimizer step."""
        for bucket in _buckets(self._complete_gradients(parameters)):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(flat, group=self.group)
            flat /= self.count
            for gradient, part in zip(bucket, flat.split([gradient.numel() for gradient in bucket]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def _complete_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> list[Tensor]:
        """Gradients that are not sharded, after a parameter that has one on some rank was given one on all.

        A weight without a gradient on every rank keeps no gradient, so that the optimizer treats it as in one process.
        Empty for one process: it has nothing to share.
        """
        trained = [item for item in parameters if item.requires_grad and not isinstance(item, DTensor)]
        if self.count == 1 or not trained:
            return []
        present = torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.int32)
        present = present.to(trained[0].device)
        dist.all_reduce(present, op=dist.ReduceOp.MAX, group=self.group)
        gradients: list[Tensor] = []
        for parameter, there in zip(trained, present.tolist(), strict=True):
            if there and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                gradients.append(parameter.grad)
        return gradients


ALONE = Ranks()
"""One process that trains by itself."""


def local_part(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor: the whole tensor, unless it is sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_row(tensor: Tensor, ranks: Ranks) -> int:
    """Where what this rank holds of a tensor begins: a sharded one is cut into equal parts, first dimension first."""
    if not isinstance(tensor, DTensor):
        return 0
    return min(ranks.rank * -(-len(tensor) // ranks.count), len(tensor))


def _buckets(gradients: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Gradients of one type each, up to `BUCKET` numbers together."""
    part: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if part and (size + gradient.numel() > BUCKET or gradient.dtype != part[0].dtype):
            yield part
            part, size = [], 0
        part.append(gradient)
        size += gradient.numel()
    if part:
        yield part
