"""The loss of the trainer as pure functions on tensors. No model, no trainer state, no configuration object.

Shapes: S samples (one sample is one step of one trajectory), T tokens of the longest response, M response tokens
in all (M = mask.sum()), V tokens of the vocabulary. `mask` is a (S, T) boolean tensor, True on response tokens.

Sources: DART (arXiv 2509.23866) for the objective, the truncated importance weight and the entropy selection;
DAPO (arXiv 2503.14476) for the asymmetric clip; dual clip from arXiv 1912.09729; k3 from Schulman's "Approximating
KL divergence"; names of options and metrics from TRL's `GRPOConfig`.

Invariants:
    - Everything is computed in float32, whatever the model's precision: a log-softmax of bfloat16 logits is wrong
      by up to 0.05 nats, which the importance weight would then "correct".
    - Sums over micro-batches equal the value over the whole batch: normalisers are arguments, never recomputed.
    - Entries where `mask` is False never influence a result, even when they are not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LossType = Literal["dapo", "grpo", "dr_grpo"]
LOG_RATIO_LIMIT = 20.0
KL_LIMIT = 10.0


def token_logprobs(logits: Tensor, ids: Tensor, suppressed_ids: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Log-probability of each response token, and the entropy of the distribution that it was drawn from.

    log p(y) = z_y - logsumexp(z),  H = -sum_v p(v) log p(v),  both over the tokens that are not suppressed:
    the set that the engine samples from.

    Args:
        logits: (M, V), any floating type.
        ids: (M,) sampled tokens.
        suppressed_ids: tokens that are never sampled (`ModelTokens.suppressed_ids`).

    Returns:
        log-probabilities (M,), differentiable; entropies (M,) in nats, differentiable.
    """
    logits = logits.float()
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


def importance_ratio(
    logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, level: Literal["token", "sequence"] = "token"
) -> Tensor:
    """Ratio of the current to the old policy.

    token:     rho_t = exp(clamp(l_t - old_t, -20, 20))
    sequence:  rho   = exp(mean_t (l_t - old_t)), the same value at every token of a step (GSPO, arXiv 2507.18071)

    Returns:
        (S, T), differentiable; 1 where `mask` is False.
    """
    difference = (logprobs - old_logprobs).masked_fill(~mask, 0.0)
    if level == "sequence":
        difference = masked_mean(difference, mask, dim=-1)[:, None].expand_as(difference)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def clipped_loss(
    ratio: Tensor, advantages: Tensor, *, epsilon: float = 0.2, epsilon_high: float = 0.28, delta: float | None = None
) -> Tensor:
    """GRPO's clipped surrogate per token, with an asymmetric clip and an optional dual clip.

    L = max(-A rho, -A clip(rho, 1 - epsilon, 1 + epsilon_high));   if A < 0 and delta: L = min(-A delta, L)

    Args:
        ratio: (S, T) importance ratio.
        advantages: (S,) advantage of each step, the same for all its tokens.
        epsilon: lower clip range.
        epsilon_high: upper clip range.
        delta: upper bound on the ratio where the advantage is negative; None for none.

    Returns:
        (S, T) loss, to be minimised.
    """
    advantage = advantages[:, None]
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - epsilon, 1 + epsilon_high))
    if delta is not None:
        loss = torch.where(advantage < 0, torch.minimum(-advantage * delta, loss), loss)
    return loss


def truncated_weight(old_logprobs: Tensor, behaviour_logprobs: Tensor, known: Tensor, clip_max: float) -> Tensor:
    """Truncated importance weight per token between the trainer's policy and the one that sampled.

    w_t = min(exp(old_t - mu_t), C), detached; 1 where mu is unknown (demonstrations, injected trajectories).

    Args:
        old_logprobs: (S, T) log pi_old of the trainer.
        behaviour_logprobs: (S, T) log mu as the engine recorded it.
        known: (S, T) True where mu was recorded.
        clip_max: C; DART uses 1.

    Returns:
        (S, T), without gradient.
    """
    difference = (old_logprobs.detach() - behaviour_logprobs).masked_fill(~known, 0.0)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().clamp(max=clip_max)


def k3_divergence(logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Unbiased, never negative estimate of KL(pi || ref) per token.

    k3 = exp(d) - d - 1,  d = log ref - log pi, both clamped as DART does.

    Returns:
        (S, T), differentiable; 0 where `mask` is False.
    """
    d = (reference_logprobs - logprobs).masked_fill(~mask, 0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (d.exp() - d - 1).clamp(-KL_LIMIT, KL_LIMIT)


def high_entropy_steps(step_entropies: Tensor, groups: Tensor, keep: float) -> Tensor:
    """DART's selection of steps: those whose mean token entropy reaches the (1 - keep) quantile of their group.

    1{H_t >= tau_D^(1-keep)}, H_t the masked mean over all generated tokens of the step, D the steps of one task.

    Args:
        step_entropies: (S,) of the whole batch, not of a micro-batch: quantiles of few steps are noise.
        groups: (S,) integer group of each step.
        keep: share of steps to keep, 0.8 in DART; 1 keeps all.

    Returns:
        (S,) boolean.
    """
    kept = torch.ones_like(step_entropies, dtype=torch.bool)
    if keep >= 1.0:
        return kept
    for group in groups.unique():
        members = groups == group
        threshold = torch.quantile(step_entropies[members].double(), 1.0 - keep)
        kept[members] = step_entropies[members].double() >= threshold
    return kept


@dataclass(frozen=True, slots=True)
class Normalizer:
    """What the losses of a whole optimizer batch are divided by, so that its micro-batches add up.

    Attributes:
        tokens: response tokens in the batch.
        samples: steps in the batch.
        max_tokens: constant of "dr_grpo": the longest response allowed.
    """

    tokens: int
    samples: int
    max_tokens: int = 1


def aggregate(token_losses: Tensor, mask: Tensor, normalizer: Normalizer, loss_type: LossType) -> Tensor:
    """Sum of token losses, divided so that micro-batches of one optimizer batch add up to the batch's loss.

    dapo:     sum L / tokens                            every token counts the same
    grpo:     sum_i mean_t L_i / samples                every step counts the same (DART's seq-mean-token-mean)
    dr_grpo:  sum L / (samples * max_tokens)            a constant, no bias by length (arXiv 2503.20783)

    Steps dropped by the entropy selection have a loss of 0 and stay in the denominator, as in DART's expectation.

    Args:
        token_losses: (S, T) of this micro-batch.
        mask: (S, T).
        normalizer: of the whole optimizer batch.
        loss_type: how to weigh tokens.

    Returns:
        scalar.
    """
    if loss_type == "grpo":
        return masked_mean(token_losses, mask, dim=-1).sum() / max(normalizer.samples, 1)
    total = token_losses.masked_fill(~mask, 0.0).sum()
    if loss_type == "dapo":
        return total / max(normalizer.tokens, 1)
    return total / max(normalizer.samples * normalizer.max_tokens, 1)


def clip_fractions(
    ratio: Tensor, advantages: Tensor, mask: Tensor, *, epsilon: float, epsilon_high: float
) -> dict[str, Tensor]:
    """Number of tokens whose gradient the clip cut: "low", "high" and "region" (either); sums, not means."""
    advantage = advantages[:, None]
    low = (ratio < 1 - epsilon) & (advantage < 0) & mask
    high = (ratio > 1 + epsilon_high) & (advantage > 0) & mask
    return {"low": low.sum(), "high": high.sum(), "region": (low | high).sum()}
