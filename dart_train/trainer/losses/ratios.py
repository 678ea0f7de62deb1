"""Comparison of two policies' log-probabilities of the same tokens: ratios, importance weights, estimates of a KL.

Three policies occur: pi is trained, pi_old is the trainer's before the update, mu sampled the tokens. pi / pi_old is
what a surrogate clips, and has a gradient. pi_old / mu is what a correction weighs, and never has one: mu differs from
pi_old because an engine computes otherwise (kernels, precision) even at the same version, and because it served an
older version. `known` tells where mu is on record; elsewhere (demonstrations, pool) the weight is 1.
"""

import math

import torch
from torch import Tensor

from dart_train.trainer.losses.surrogates import CorrectionMode, KLEstimator, RatioLevel

LOG_RATIO_LIMIT = 20.0
"""Differences of log-probabilities are clamped to this before `exp`, as DART does."""
KL_LIMIT = 10.0


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of `values` where `mask` is True; 0 where it is True nowhere."""
    kept = values.masked_fill(~mask, 0.0)
    if dim is None:
        return kept.sum() / mask.sum().clamp(min=1)
    return kept.sum(dim) / mask.sum(dim).clamp(min=1)


def log_ratio(left: Tensor, right: Tensor, mask: Tensor) -> Tensor:
    """(S, T) left - right; 0 where `mask` is False, regardless of the values there."""
    return (left - right).masked_fill(~mask, 0.0)


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
        mask: (S, T) True on response tokens.
        level: one ratio per token, or one per step.

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


def correction_weight(
    old_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    known: Tensor,
    mode: CorrectionMode = "token_truncate",
    *,
    clip_max: float | None = 1.0,
    clip_min: float | None = None,
) -> Tensor:
    """Weight per token. Modes and results equal those of TRL's `vllm_importance_sampling_mode`.

    w_t = exp(old_t - mu_t) at "token" level; w = exp(sum_t (old_t - mu_t)), one for all tokens, at "sequence" level
    truncate:  min(max(w, clip_min), clip_max)                 TIS; DART: token_truncate with clip_max = 1
    mask:      w where clip_min <= w <= clip_max, else 0       IcePop (token), MIS (sequence)

    A product over the tokens of a long response is far from 1 for harmless differences: 0.012 nats over 100 tokens
    are a factor of 3.3. Prefer the token modes, or `geometric_mask`.

    Args:
        old_logprobs: (S, T) log pi_old.
        behaviour_logprobs: (S, T) log mu as the engine recorded it.
        known: (S, T) True where mu was recorded.
        mode: what is weighed, and what happens to weights outside the bounds; see above.
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
        # Tokens that were not recorded have no gap to truncate, for any bounds.
        return torch.where(known, weight.clamp(min=clip_min, max=clip_max), weight)
    low = -math.inf if clip_min is None else clip_min
    high = math.inf if clip_max is None else clip_max
    return weight.masked_fill(((weight < low) | (weight > high)) & known, 0.0)


def geometric_mask(
    old_logprobs: Tensor, behaviour_logprobs: Tensor, known: Tensor, *, low: float | None, high: float | None
) -> Tensor:
    """Which responses lie near the policy that sampled them, by the geometric mean of their tokens' ratios.

    keep = low <= exp(mean_t (old_t - mu_t)) <= high: unlike a product it does not depend on the response's length
    (AReaL, SkyRL; 0.99 to 1.01 for engines at the same version).

    Args:
        old_logprobs: (S, T) log pi_old.
        behaviour_logprobs: (S, T) log mu.
        known: (S, T) True where mu was recorded; a response without any is kept.
        low: least ratio that is kept; None for no bound.
        high: largest ratio that is kept; None for no bound.

    Returns:
        (S,) boolean.
    """
    mean = masked_mean(log_ratio(old_logprobs.detach(), behaviour_logprobs, known), known, dim=-1)
    ratio = mean.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    outside = (ratio < (-math.inf if low is None else low)) | (ratio > (math.inf if high is None else high))
    return ~(outside & known.any(-1))


def off_policy_mask(
    advantages: Tensor, logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor, threshold: float
) -> Tensor:
    """Which steps count: those with an advantage of at least 0, and those that pi still does much as mu did.

    keep = A >= 0 or mean_t (log mu - log pi) <= threshold: pushing down what the policy would hardly do any more
    teaches nothing and destabilises (DeepSeek-V3.2, arXiv 2512.02556, eq. 9; TRL's `off_policy_mask_threshold`).

    Args:
        advantages: (S, 1) or (S, T).
        logprobs: (S, T) log pi.
        behaviour_logprobs: (S, T) log mu; log pi_old where mu is not on record.
        mask: (S, T) True on response tokens.
        threshold: in nats per token, above 0.

    Returns:
        (S, 1) or (S, T) boolean.
    """
    gap = masked_mean(log_ratio(behaviour_logprobs, logprobs.detach(), mask), mask, dim=-1)[:, None]
    return (advantages >= 0) | (gap <= threshold)


def effective_sample_share(total: float, total_of_squares: float, count: float) -> float:
    """Effective sample size over the number of samples, (sum w)^2 / (n sum w^2): 1 for equal weights, 1/n for one."""
    if count <= 0 or total_of_squares <= 0:
        return 0.0
    return total * total / (count * total_of_squares)


def divergence(logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor, estimator: KLEstimator = "k3") -> Tensor:
    """Estimate of KL(pi || ref) per token, with d = log ref - log pi clamped to [-20, 20] as DART does.

    k1 = -d                  unbiased, large variance; as a loss its gradient vanishes in expectation, so it regularises
                             only together with a ratio (`ObjectiveConfig.use_bias_correction_kl`)
    k2 = d^2 / 2             biased, its gradient is the KL's (Schulman)
    k3 = exp(d) - d - 1      unbiased and never negative; clamped to at most 10 (DART's "low_var_kl")

    Args:
        logprobs: (S, T) log pi.
        reference_logprobs: (S, T) log ref.
        mask: (S, T) True on response tokens.
        estimator: which of the three.

    Returns:
        (S, T), differentiable; 0 where `mask` is False.
    """
    d = log_ratio(reference_logprobs, logprobs, mask).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if estimator == "k1":
        return -d
    if estimator == "k2":
        return d.square() / 2
    return (d.exp() - d - 1).clamp(-KL_LIMIT, KL_LIMIT)
