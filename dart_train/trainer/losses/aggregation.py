"""Token losses to the share of a micro-batch in the loss of its optimizer batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from dart_train.trainer.losses.token_logprobs import masked_mean

LossType = Literal["grpo", "dapo", "bnpo", "dr_grpo", "cispo"]


@dataclass(frozen=True, slots=True)
class Normalizer:
    """What the losses of a whole optimizer batch are divided by, so that its micro-batches add up.

    With several ranks the first two count all ranks' data, and the loss of a rank is multiplied by their number,
    because data parallelism averages gradients.

    Attributes:
        tokens: response tokens in the batch.
        samples: steps in the batch.
        max_tokens: constant of "dr_grpo": the longest response allowed.
        rank_tokens: response tokens of this rank, for "bnpo"; None where there is one rank.
        ranks: how many share the batch.
        kept_tokens: response tokens that a selection of tokens left, for the entropy bonus; None without a selection.
        supervised_tokens: response tokens that are imitated, in the batch; not among the others.
    """

    tokens: int
    samples: int
    max_tokens: int = 1
    rank_tokens: int | None = None
    ranks: int = 1
    kept_tokens: int | None = None
    supervised_tokens: int = 0

    @property
    def acting_tokens(self) -> int:
        """Tokens that the entropy bonus is the mean over."""
        return self.tokens if self.kept_tokens is None else self.kept_tokens


def aggregate(token_losses: Tensor, mask: Tensor, normalizer: Normalizer, loss_type: LossType) -> Tensor:
    """Sum of token losses, divided so that micro-batches of one optimizer batch add up to the batch's loss.

    grpo:          sum_i mean_t L_i / samples        every step counts the same (DART's seq-mean-token-mean)
    dapo, cispo:   sum L / tokens                    every token counts the same, over all ranks (token-mean)
    bnpo:          sum L / rank_tokens               the same over the tokens of this rank (TRL: of this device's batch)
    dr_grpo:       sum L / (samples * max_tokens)    a constant, no bias by length (arXiv 2503.20783)

    Steps and tokens dropped by an entropy selection or a mask have a loss of 0 and stay in the denominator, as in
    DART's expectation and in TRL.

    Args:
        token_losses: (S, T) of this micro-batch.
        mask: (S, T).
        normalizer: of the whole optimizer batch.
        loss_type: how to weigh tokens.

    Returns:
        scalar.
    """
    if loss_type == "grpo":
        return masked_mean(token_losses, mask, dim=-1).sum() * normalizer.ranks / max(normalizer.samples, 1)
    total = token_losses.masked_fill(~mask, 0.0).sum()
    if loss_type == "bnpo":
        tokens = normalizer.tokens if normalizer.rank_tokens is None else normalizer.rank_tokens
        return total / max(tokens, 1)
    if loss_type == "dr_grpo":
        return total * normalizer.ranks / max(normalizer.samples * normalizer.max_tokens, 1)
    return total * normalizer.ranks / max(normalizer.tokens, 1)


def imitation(logprobs: Tensor, mask: Tensor, weights: Tensor, normalizer: Normalizer) -> Tensor:
    """Share of a micro-batch in the cross-entropy of the rows that are imitated.

    L = -sum_i w_i sum_t log pi(y_it) / supervised_tokens, in nats per token

    Args:
        logprobs: (S, T) with gradient.
        mask: (S, T).
        weights: (S,), 0 for rows that are not imitated.
        normalizer: of the whole optimizer batch.

    Returns:
        scalar.
    """
    losses = (-logprobs * weights[:, None]).masked_fill(~(mask & (weights != 0)[:, None]), 0.0)
    return losses.sum() * normalizer.ranks / max(normalizer.supervised_tokens, 1)
