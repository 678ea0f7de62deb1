"""Log-probabilities and entropies of sampled tokens, from logits. Always float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Differences of log-probabilities are clamped to this before `exp`, as DART does."""


def token_logprobs(
    logits: Tensor, ids: Tensor, suppressed_ids: Sequence[int] = (), *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each response token, and the entropy of the distribution that it was drawn from.

    log p(y) = z_y - logsumexp(z),  H = -sum_v p(v) log p(v),  z = logits / temperature, both over the tokens that are
    not suppressed: the distribution that the engine samples from.

    Args:
        logits: (M, V), any floating type.
        ids: (M,) sampled tokens.
        suppressed_ids: tokens that are never sampled (`ModelTokens.suppressed_ids`).
        temperature: of sampling.

    Returns:
        log-probabilities (M,), differentiable; entropies (M,) in nats, differentiable.
    """
    if logits.dtype is not torch.float64:  # which only tests use
        logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    if len(suppressed_ids):
        suppressed = torch.as_tensor(suppressed_ids, device=logits.device)
        logits = logits.index_fill(-1, suppressed, torch.finfo(torch.float32).min)
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p.clamp(min=-1e4)).sum(-1)  # a suppressed token adds exp(-huge) * -1e4 = 0
    return log_p.gather(-1, ids[:, None]).squeeze(-1), entropy


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of `values` where `mask` is True; 0 where it is True nowhere."""
    kept = values.masked_fill(~mask, 0.0)
    if dim is None:
        return kept.sum() / mask.sum().clamp(min=1)
    return kept.sum(dim) / mask.sum(dim).clamp(min=1)


def log_ratio(left: Tensor, right: Tensor, mask: Tensor) -> Tensor:
    """(S, T) left - right, 0 where `mask` is False whatever stands there."""
    return (left - right).masked_fill(~mask, 0.0)
