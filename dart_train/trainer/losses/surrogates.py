"""The losses that `loss_type` names: the objective of each token, and the weights of tokens among one another.

A loss is one class in this module, or anywhere else: `loss_type` takes a name of `LOSSES`, a name that an installed
package announces in the group "dart_gui.losses", or "module:Class". It is all that a loss needs to be:

```python
@dataclass(frozen=True)
class Spread(losses.Loss):
    \"\"\"L = -A rho + c (rho - 1)^2.\"\"\"

    c: float = 0.1  # loss_options: {c: 0.2}; a field that is named like a setting of the trainer gets that setting
    ratio_level = "sequence"
    aggregate = staticmethod(losses.token_mean)

    def __call__(self, terms):
        return -terms.advantages * terms.ratio + self.c * (terms.ratio - 1).square()
```

Corrections, KL term, selections and the entropy bonus come with every loss: see `objective`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dart_gym.utils.plugins import Registry, has

if TYPE_CHECKING:
    from torch import Tensor

RatioLevel = Literal["token", "sequence", "sequence_token"]
CorrectionMode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
KLEstimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True)
class Normalizer:
    """Divisors of the losses of a whole optimizer batch, so that its micro-batches add up.

    With several ranks the first two count all ranks' data, and the loss of a rank is multiplied by their number,
    because data parallelism averages gradients.

    Attributes:
        max_tokens: constant of `constant_mean`: the longest response allowed, in tokens.
        rank_tokens: response tokens of this rank, for `rank_token_mean`; None where there is one rank.
        kept_tokens: response tokens that a selection of tokens left, for the entropy bonus; None without a selection.
        supervised_tokens: response tokens of demonstrations in the batch; not among the others.
        taught_tokens: tokens of a teacher's answers; not among the others.
    """

    tokens: int
    samples: int
    max_tokens: int = 1
    rank_tokens: int | None = None
    ranks: int = 1
    kept_tokens: int | None = None
    supervised_tokens: int = 0
    taught_tokens: int = 0

    @property
    def acting_tokens(self) -> int:
        """Tokens that the entropy bonus is the mean over."""
        return self.tokens if self.kept_tokens is None else self.kept_tokens


# --- from token losses to the share of a micro-batch in the loss of its optimizer batch ---------------------------
#
# Each takes (S, T) losses, the (S, T) mask and the batch's normalizer, and returns a scalar. Steps and tokens that an
# entropy selection or a mask dropped have a loss of 0 and stay in the denominator, as in DART's expectation and in TRL.


def step_mean(losses: Tensor, mask: Tensor, normalizer: Normalizer) -> Tensor:
    """sum_i mean_t L_i / samples: every step counts the same (DART's seq-mean-token-mean)."""
    means = losses.masked_fill(~mask, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)
    return means.sum() * normalizer.ranks / max(normalizer.samples, 1)


def token_mean(losses: Tensor, mask: Tensor, normalizer: Normalizer) -> Tensor:
    """Sum L / tokens: every token counts the same, over all ranks (DAPO's token-mean)."""
    return losses.masked_fill(~mask, 0.0).sum() * normalizer.ranks / max(normalizer.tokens, 1)


def rank_token_mean(losses: Tensor, mask: Tensor, normalizer: Normalizer) -> Tensor:
    """Sum L / rank_tokens: the mean over the tokens of this rank (TRL's bnpo: of this device's batch)."""
    tokens = normalizer.tokens if normalizer.rank_tokens is None else normalizer.rank_tokens
    return losses.masked_fill(~mask, 0.0).sum() / max(tokens, 1)


def constant_mean(losses: Tensor, mask: Tensor, normalizer: Normalizer) -> Tensor:
    """Sum L / (samples * max_tokens): a constant, no bias by length (arXiv 2503.20783)."""
    total = losses.masked_fill(~mask, 0.0).sum() * normalizer.ranks
    return total / max(normalizer.samples * normalizer.max_tokens, 1)


def nll_loss(logprobs: Tensor, mask: Tensor, weights: Tensor, *, tokens: int, ranks: int) -> Tensor:
    """Share of a micro-batch in the cross-entropy on the demonstrations of its batch, or on a teacher's answers.

    L = -sum_i w_i sum_t log pi(y_it) / tokens, in nats per token

    Args:
        logprobs: (S, T) with gradient.
        mask: (S, T) True on response tokens.
        weights: (S,), 0 for all other samples.
        tokens: of these samples in the whole optimizer batch.
        ranks: that the batch is divided among.

    Returns:
        scalar.
    """
    losses = (-logprobs * weights[:, None]).masked_fill(~(mask & (weights != 0)[:, None]), 0.0)
    return losses.sum() * ranks / max(tokens, 1)


# --- surrogates ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """Parts of a surrogate.

    Attributes:
        ratio: (S, T) pi / pi_old with gradient, at the level that the loss asks for.
        logprobs: (S, T) log pi with gradient; 0 where `mask` is False.
        advantages: (S, 1), or (S, T) where tokens have advantages of their own.
        mask: (S, T) True on response tokens that count.
    """

    ratio: Tensor
    logprobs: Tensor
    advantages: Tensor
    mask: Tensor


class Loss:
    """Base of all losses: the plain policy gradient with a ratio (None: of any level), L = -A rho."""

    ratio_level: ClassVar[RatioLevel | None] = None

    @staticmethod
    def aggregate(losses: Tensor, mask: Tensor, normalizer: Normalizer) -> Tensor:
        """Scalar: how the loss weighs tokens. Others of this module take its place by `staticmethod(token_mean)`."""
        return step_mean(losses, mask, normalizer)

    def __call__(self, terms: Terms) -> Tensor:
        """(S, T) loss of each token, to be minimised."""
        return -terms.advantages * terms.ratio

    def statistics(self, terms: Terms) -> Mapping[str, Tensor]:
        """(S, T) numbers by log name, whose mean over the mask is reported; without gradient."""
        return {}


@dataclass(frozen=True)
class GRPO(Loss):
    """GRPO's clipped surrogate, with DAPO's asymmetric clip and an optional dual clip. As DART: a mean of means.

    L = max(-A rho, -A clip(rho, 1 - epsilon, 1 + epsilon_high));   if A < 0 and delta: L = min(-A delta, L)

    Sources: DART (arXiv 2509.23866), DAPO (2503.14476), dual clip (1912.09729).

    Attributes:
        delta: upper bound of the ratio where the advantage is negative; None for none.
    """

    epsilon: float = 0.2
    epsilon_high: float = 0.28
    delta: float | None = 10.0

    def __post_init__(self) -> None:
        if self.delta is not None and self.delta <= 1 + self.epsilon_high:
            raise ValueError(
                f"delta={self.delta!r} must be above 1 + epsilon_high = {1 + self.epsilon_high:g}, else it clips "
                "before the clip does; raise it or set it to None"
            )

    def __call__(self, terms: Terms) -> Tensor:
        """(S, T) clipped loss."""
        advantage, ratio = terms.advantages, terms.ratio
        clipped = ratio.clamp(1 - self.epsilon, 1 + self.epsilon_high)
        loss = (-advantage * ratio).maximum(-advantage * clipped)
        if self.delta is not None:
            loss = loss.minimum(-advantage * self.delta).where(advantage < 0, loss)
        return loss

    def statistics(self, terms: Terms) -> Mapping[str, Tensor]:
        """Return the tokens whose gradient was clipped."""
        low = (terms.ratio < 1 - self.epsilon) & (terms.advantages < 0)
        high = (terms.ratio > 1 + self.epsilon_high) & (terms.advantages > 0)
        return {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low | high}


class DAPO(GRPO):
    """GRPO's surrogate, mean over all tokens of all ranks (arXiv 2503.14476)."""

    aggregate = staticmethod(token_mean)


class BNPO(GRPO):
    """GRPO's surrogate, mean over the tokens of each rank (arXiv 2506.02864; TRL's `bnpo`)."""

    aggregate = staticmethod(rank_token_mean)


class DrGRPO(GRPO):
    """GRPO's surrogate, sum over steps x `max_completion_length` (Dr. GRPO, arXiv 2503.20783)."""

    aggregate = staticmethod(constant_mean)


@dataclass(frozen=True)
class CISPO(Loss):
    """The ratio is a clipped weight without gradient, every token keeps its own (MiniMax-M1, arXiv 2506.13585).

    L = -sg[min(rho, epsilon_high)] A log pi, mean over all tokens of all ranks

    Attributes:
        epsilon_high: largest weight, an absolute value such as 5.0 (TRL's field).
    """

    epsilon_high: float = 5.0
    aggregate = staticmethod(token_mean)

    def __post_init__(self) -> None:
        if self.epsilon_high < 1.0:
            raise ValueError(
                f"epsilon_high={self.epsilon_high!r} is the largest weight of loss_type='cispo', not a distance from "
                "1; set it to such as 5.0"
            )

    def __call__(self, terms: Terms) -> Tensor:
        """(S, T) loss; 0 where the mask is False."""
        return -terms.ratio.detach().clamp(max=self.epsilon_high) * terms.advantages * terms.logprobs

    def statistics(self, terms: Terms) -> Mapping[str, Tensor]:
        """Return the tokens whose weight was clipped."""
        return {"cispo_clip_ratio": (terms.ratio > self.epsilon_high) & (terms.advantages > 0)}


LOSSES: Registry[type[Loss]] = Registry(
    "loss",
    "dart_gui.losses",
    {"grpo": GRPO, "dapo": DAPO, "bnpo": BNPO, "dr_grpo": DrGRPO, "cispo": CISPO},
    (has("aggregate", __call__=("terms",), statistics=("terms",)),),
)
