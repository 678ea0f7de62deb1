"""Importance weights between pi_old, the trainer's policy, and mu, the one that sampled. Never with gradient.

mu differs from pi_old in two ways: an engine computes otherwise (kernels, precision) even at the same version, and it
served an older version. `known` tells where mu is on record; elsewhere (demonstrations, pool) the weight is 1.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from dart_train.trainer.losses.token_logprobs import LOG_RATIO_LIMIT, log_ratio, masked_mean

CorrectionMode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


def correction_weight(
    old_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    known: Tensor,
    mode: CorrectionMode = "token_truncate",
    *,
    clip_max: float | None = 1.0,
    clip_min: float | None = None,
) -> Tensor:
    """Weight per token. Modes and their results are those of TRL's `vllm_importance_sampling_mode`.

    w_t = exp(old_t - mu_t) at "token" level; w = exp(sum_t (old_t - mu_t)), one for all tokens, at "sequence" level
    truncate:  min(max(w, clip_min), clip_max)                 TIS; DART: token_truncate with clip_max = 1
    mask:      w where clip_min <= w <= clip_max, else 0       IcePop (token), MIS (sequence)

    A product over the tokens of a long response is far from 1 for harmless differences: 0.012 nats over 100 tokens
    are a factor of 3.3. Prefer the token modes, or `geometric_mask`.

    Args:
        old_logprobs: (S, T) log pi_old.
        behaviour_logprobs: (S, T) log mu as the engine recorded it.
        known: (S, T) True where mu was recorded.
        mode: see above.
        clip_max: largest weight; None for no bound.
        clip_min: smallest weight; None for no bound.

    Returns:
        (S, T), without gradient.
    """
    difference = log_ratio(old_logprobs.detach(), behaviour_logprobs, known)
    if mode.startswith("sequence"):
        difference = difference.sum(-1, keepdim=True).expand_as(difference)
    weight = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    if mode.endswith("truncate"):
        if clip_min is None and clip_max is None:
            return weight
        # What is not on record has no gap to be truncated, whatever the bounds are.
        return torch.where(known, weight.clamp(min=clip_min, max=clip_max), weight)
    low = -math.inf if clip_min is None else clip_min
    high = math.inf if clip_max is None else clip_max
    return weight.masked_fill(((weight < low) | (weight > high)) & known, 0.0)


def truncated_weight(old_logprobs: Tensor, behaviour_logprobs: Tensor, known: Tensor, clip_max: float) -> Tensor:
    """DART's truncated importance weight per token, w_t = min(exp(old_t - mu_t), C): `correction_weight`'s default."""
    return correction_weight(old_logprobs, behaviour_logprobs, known, clip_max=clip_max)


def geometric_mask(
    old_logprobs: Tensor, behaviour_logprobs: Tensor, known: Tensor, *, low: float | None, high: float | None
) -> Tensor:
    """Which responses lie near the policy that sampled them, by the geometric mean of their tokens' ratios.

    keep = low <= exp(mean_t (old_t - mu_t)) <= high: unlike a product it does not depend on the response's length
    (AReaL, SkyRL; 0.99 to 1.01 for engines at the same version).

    Args:
        old_logprobs: (S, T) log pi_old.
        behaviour_logprobs: (S, T) log mu.
        known: (S, T); a response without any is kept.
        low: least ratio; None for no bound.
        high: largest ratio; None for no bound.

    Returns:
        (S,) boolean.
    """
    mean = masked_mean(log_ratio(old_logprobs.detach(), behaviour_logprobs, known), known, dim=-1)
    ratio = mean.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    outside = (ratio < (-math.inf if low is None else low)) | (ratio > (math.inf if high is None else high))
    return ~(outside & known.any(-1))


def effective_sample_share(total: float, total_of_squares: float, count: float) -> float:
    """Effective sample size over the number of samples, (sum w)^2 / (n sum w^2): 1 for equal weights, 1/n for one."""
    if count <= 0 or total_of_squares <= 0:
        return 0.0
    return total * total / (count * total_of_squares)
