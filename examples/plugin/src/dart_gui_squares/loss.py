"""The loss "spread": a squared penalty on the ratio in the place of a clip. `trainer: {loss_type: spread}`.

A loss is a dataclass that is called with the terms of a micro-batch, each (steps, tokens). Advantages, corrections for
old weights, the KL term and the choice of tokens come with every loss: one line is what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dart_train.trainer import losses

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Spread(losses.Loss):
    """L = -A rho + c (rho - 1)^2, mean over all tokens.

    Attributes:
        c: weight of the penalty, from `trainer.loss_options`. A field that is named like a setting of the trainer, such
            as `epsilon`, has that setting's value.
    """

    c: float = 0.1
    aggregate = staticmethod(losses.token_mean)

    def __call__(self, terms: losses.Terms) -> Tensor:
        """(steps, tokens) loss; where `terms.mask` is False it does not count."""
        return -terms.advantages * terms.ratio + self.c * (terms.ratio - 1).square()

    def statistics(self, terms: losses.Terms) -> Mapping[str, Tensor]:
        """What is reported of it, the mean over response tokens."""
        return {"spread": (terms.ratio - 1).square()}
