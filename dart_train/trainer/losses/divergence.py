"""Estimates of KL(pi || ref) from the log-probabilities of sampled tokens."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from dart_train.trainer.losses.token_logprobs import LOG_RATIO_LIMIT, log_ratio

KLEstimator = Literal["k1", "k2", "k3"]
KL_LIMIT = 10.0


def divergence(logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor, estimator: KLEstimator = "k3") -> Tensor:
    """Estimate of KL(pi || ref) per token, with d = log ref - log pi clamped to [-20, 20] as DART does.

    k1 = -d                  unbiased, large variance; as a loss its gradient vanishes in expectation, so it regularises
                             only together with a ratio (`ObjectiveConfig.use_bias_correction_kl`)
    k2 = d^2 / 2             biased, its gradient is the KL's (Schulman)
    k3 = exp(d) - d - 1      unbiased and never negative; clamped to at most 10 (DART's "low_var_kl")

    Args:
        logprobs: (S, T) log pi.
        reference_logprobs: (S, T) log ref.
        mask: (S, T).
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
