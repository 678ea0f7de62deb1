"""Size of an optimizer step's change of the weights, measured on a sample of each trained tensor."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from dart_train.trainer.weights.ranks import Ranks, local_part

SAMPLE = 256
"""Numbers of each trained tensor that are compared: the first ones that this rank holds."""


class UpdateSize:
    """Compares a sample of the trained weights with what it was one step earlier.

    Args:
        parameters: the model's parameters; those without gradient are left out.
        ranks: the ranks among which they may be shared.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], ranks: Ranks) -> None:
        self._parameters = [item for item in parameters if item.requires_grad]
        self._ranks = ranks
        self._before = self._sample()

    def measure(self) -> float:
        """Return the norm of the change since the last call, relative to the norm of the sampled weights."""
        now = self._sample()
        change, size = float((now - self._before).square().sum()), float(now.square().sum())
        self._before = now
        changes, sizes = zip(*self._ranks.gather((change, size)), strict=True)
        return (sum(changes) / max(sum(sizes), torch.finfo(torch.float32).tiny)) ** 0.5

    def _sample(self) -> Tensor:
        parts = [local_part(item.detach()).flatten()[:SAMPLE].float() for item in self._parameters]
        return torch.cat(parts) if parts else torch.zeros(0)
