"""The whole objective: every term of the loss, chosen by one configuration object.

Per token, with A the step's advantage, w the correction weight and 1_g the geometric mask between pi_old and mu, 1_near
the mask of negative steps far off pi, 1_step and 1_token the selection by entropy:

    L_t = 1_step * (1_token * 1_near * w * 1_g * loss(pi / pi_old, A) + beta * KL(pi, ref))

aggregated as the loss says, minus entropy_coef times the mean entropy of the batch's (selected) tokens. The selection
of steps covers the KL term (DART's formula), the selection of tokens does not (TRL's). The entropy's mean does not
depend on the loss (TRL's).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dart_train.trainer.losses.ratios import (
    correction_weight,
    divergence,
    geometric_mask,
    importance_ratio,
    off_policy_mask,
)
from dart_train.trainer.losses.surrogates import GRPO, CorrectionMode, KLEstimator, Loss, Normalizer, RatioLevel, Terms


@dataclass(frozen=True, slots=True)
class ObjectiveConfig:
    """Which terms the objective has. Defaults are DART's.

    Attributes:
        importance_sampling_level: of the ratio pi / pi_old, for losses that leave it open; "sequence" with GRPO's loss
            is GSPO.
        tis_clip_max: C of the correction; None switches the whole correction off.
        tis_clip_min: lower bound of the correction; None for none.
        geometric_clip: (low, high) of the mask by geometric mean; None for none.
        off_policy_threshold: steps with a negative advantage do not count where the mean of log mu - log pi over their
            tokens is above; None for no such mask.
        use_bias_correction_kl: multiply the KL term by the ratio (TRL's field).
    """

    loss: Loss = GRPO()
    importance_sampling_level: RatioLevel = "token"
    tis_mode: CorrectionMode = "token_truncate"
    tis_clip_max: float | None = 1.0
    tis_clip_min: float | None = None
    geometric_clip: tuple[float | None, float | None] | None = None
    off_policy_threshold: float | None = None
    beta: float = 0.1
    kl_estimator: KLEstimator = "k3"
    use_bias_correction_kl: bool = False
    entropy_coef: float = 0.0


@dataclass(frozen=True, slots=True)
class Scored:
    """Inputs of the objective of one micro-batch; all (S, T) except `advantages`.

    Attributes:
        logprobs: log pi, with gradient.
        entropies: of pi in nats, with gradient.
        old_logprobs: log pi_old, without gradient.
        mask: True on response tokens.
        advantages: (S,) or (S, T).
        behaviour_logprobs: log mu, anything where unknown.
        behaviour_known: True where mu is on record.
        reference_logprobs: log of the reference; None without a KL term.
        kept_steps: (S,) selection of steps; None keeps all.
        kept_tokens: (S, T) selection of tokens; None keeps all.
        weights: (S,) weight of each sample in the sum, 0 for filling rows; None for 1.
    """

    logprobs: Tensor
    entropies: Tensor
    old_logprobs: Tensor
    mask: Tensor
    advantages: Tensor
    behaviour_logprobs: Tensor
    behaviour_known: Tensor
    reference_logprobs: Tensor | None = None
    kept_steps: Tensor | None = None
    kept_tokens: Tensor | None = None
    weights: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """The value and its parts, for the log; the parts are without gradient.

    Attributes:
        loss: scalar share of the micro-batch.
        statistics: (S, T) what the loss reports of itself, by log name.
        weight: (S, T) correction, geometric mask included; None where it is off.
        divergence: (S, T) KL estimate; None where it is off.
    """

    loss: Tensor
    statistics: dict[str, Tensor]
    weight: Tensor | None
    divergence: Tensor | None


def objective(scored: Scored, config: ObjectiveConfig, normalizer: Normalizer) -> Objective:
    """The loss of a micro-batch; see the module's formula."""
    if scored.weights is not None:
        # Rows of weight 0 run through the model for other ranks' sake: not even what is not finite there may count.
        counting = scored.mask & (scored.weights != 0)[:, None]
        scored = replace(scored, mask=counting, behaviour_known=scored.behaviour_known & counting)
    mask = scored.mask
    level = config.loss.ratio_level or config.importance_sampling_level
    terms = Terms(
        ratio=importance_ratio(scored.logprobs, scored.old_logprobs, mask, level),
        logprobs=scored.logprobs.masked_fill(~mask, 0.0),
        advantages=scored.advantages[:, None] if scored.advantages.dim() == 1 else scored.advantages,
        mask=mask,
    )
    loss = config.loss(terms)
    weight = _weight(scored, config)
    if weight is not None:
        loss = loss * weight
    if scored.kept_tokens is not None:
        loss = loss * scored.kept_tokens
    near = None
    if config.off_policy_threshold is not None:
        behaviour = torch.where(scored.behaviour_known, scored.behaviour_logprobs, scored.old_logprobs)
        near = off_policy_mask(terms.advantages, scored.logprobs, behaviour, mask, config.off_policy_threshold)
        loss = loss * near
    kl = None
    if config.beta and scored.reference_logprobs is not None:
        kl = divergence(scored.logprobs, scored.reference_logprobs, mask, config.kl_estimator)
        loss = loss + config.beta * (kl * terms.ratio if config.use_bias_correction_kl else kl)
    if scored.kept_steps is not None:
        loss = loss * scored.kept_steps[:, None]
    total = config.loss.aggregate(_weighted(loss, scored.weights), mask, normalizer)
    if config.entropy_coef:
        acting = mask if scored.kept_tokens is None else mask & scored.kept_tokens
        bonus = _weighted(scored.entropies, scored.weights).masked_fill(~acting, 0.0).sum()
        total = total - config.entropy_coef * bonus * normalizer.ranks / max(normalizer.acting_tokens, 1)
    with torch.no_grad():
        statistics = {name: values.detach() for name, values in config.loss.statistics(terms).items()}
        if near is not None:
            statistics["off_policy_masked"] = (~near).expand_as(mask)
    return Objective(total, statistics, weight, None if kl is None else kl.detach())


def _weighted(values: Tensor, weights: Tensor | None) -> Tensor:
    """(S, T) values times their samples' weights."""
    return values if weights is None else values * weights[:, None]


def _weight(scored: Scored, config: ObjectiveConfig) -> Tensor | None:
    """(S, T) product of the correction and the geometric mask; None where both are off."""
    old = scored.old_logprobs
    behaviour = scored.behaviour_logprobs
    known = scored.behaviour_known
    weight = None
    if config.tis_clip_max is not None:
        weight = correction_weight(
            old, behaviour, known, config.tis_mode, clip_max=config.tis_clip_max, clip_min=config.tis_clip_min
        )
    if config.geometric_clip is not None:
        low, high = config.geometric_clip
        near = geometric_mask(old, behaviour, known, low=low, high=high)[:, None]
        weight = (torch.ones_like(old) if weight is None else weight) * near
    return weight
