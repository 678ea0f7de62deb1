"""What is maximised, per token: the ratio pi / pi_old times the advantage, kept from running away."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from dart_train.trainer.losses.token_logprobs import LOG_RATIO_LIMIT, log_ratio, masked_mean

RatioLevel = Literal["token", "sequence", "sequence_token"]


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, level: RatioLevel = "token") -> Tensor:
    """Ratio of the current to the old policy.

    token:           rho_t = exp(clamp(l_t - old_t, -20, 20))
    sequence:        rho   = exp(mean_t (l_t - old_t)), the same at every token of a step (GSPO, arXiv 2507.18071)
    sequence_token:  sg[rho] * exp(l_t - sg[l_t]): GSPO's value, with a gradient of its own at every token. The same
                     gradient as "sequence" for equal weights per token, another one with weights that differ between
                     them (DART's released code: `loss_mode=gspo`)

    Args:
        logprobs: (S, T) log pi.
        old_logprobs: (S, T) log pi_old, without gradient.
        mask: (S, T).
        level: of the ratio.

    Returns:
        (S, T), differentiable; 1 where `mask` is False at level "token".
    """
    difference = log_ratio(logprobs, old_logprobs, mask)
    if level == "token":
        return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    mean = masked_mean(difference, mask, dim=-1)[:, None].expand_as(difference)
    ratio = mean.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    if level == "sequence":
        return ratio
    own = log_ratio(logprobs, logprobs.detach(), mask)  # 0, with a gradient
    return ratio.detach() * own.exp()


def clipped_loss(
    ratio: Tensor, advantages: Tensor, *, epsilon: float = 0.2, epsilon_high: float = 0.28, delta: float | None = None
) -> Tensor:
    """GRPO's clipped surrogate per token, with an asymmetric clip and an optional dual clip.

    L = max(-A rho, -A clip(rho, 1 - epsilon, 1 + epsilon_high));   if A < 0 and delta: L = min(-A delta, L)

    Args:
        ratio: (S, T) importance ratio.
        advantages: (S,) advantage of each step, the same for all its tokens; or (S, T).
        epsilon: lower clip range.
        epsilon_high: upper clip range.
        delta: upper bound on the ratio where the advantage is negative; None for none.

    Returns:
        (S, T) loss, to be minimised.
    """
    advantage = _per_token(advantages)
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - epsilon, 1 + epsilon_high))
    if delta is not None:
        loss = torch.where(advantage < 0, torch.minimum(-advantage * delta, loss), loss)
    return loss


def cispo_loss(ratio: Tensor, advantages: Tensor, logprobs: Tensor, mask: Tensor, *, ratio_max: float) -> Tensor:
    """CISPO (MiniMax-M1, arXiv 2506.13585): the ratio is a clipped weight without gradient, every token keeps its own.

    L = -sg[min(rho, ratio_max)] A log pi

    Args:
        ratio: (S, T) importance ratio.
        advantages: (S,) or (S, T).
        logprobs: (S, T) log pi, with gradient.
        mask: (S, T).
        ratio_max: largest weight, an absolute value such as 5 (TRL's `epsilon_high` of this loss).

    Returns:
        (S, T) loss; 0 where `mask` is False.
    """
    return -ratio.detach().clamp(max=ratio_max) * _per_token(advantages) * logprobs.masked_fill(~mask, 0.0)


def clip_fractions(
    ratio: Tensor, advantages: Tensor, mask: Tensor, *, epsilon: float, epsilon_high: float
) -> dict[str, Tensor]:
    """Number of tokens whose gradient the clip cut: "low", "high" and "region" (either); sums, not means."""
    advantage = _per_token(advantages)
    low = (ratio < 1 - epsilon) & (advantage < 0) & mask
    high = (ratio > 1 + epsilon_high) & (advantage > 0) & mask
    return {"low": low.sum(), "high": high.sum(), "region": (low | high).sum()}


def _per_token(advantages: Tensor) -> Tensor:
    return advantages[:, None] if advantages.dim() == 1 else advantages
