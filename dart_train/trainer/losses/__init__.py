"""The loss of the trainer as pure functions on tensors. No model, no trainer state.

    tokens.py       log-probabilities and entropies of sampled tokens
    surrogates.py   ratio, clipped loss, CISPO: what is maximised, per token
    corrections.py  importance weights between the trainer's policy and the one that sampled
    divergence.py   KL estimators
    selection.py    which tokens or steps count, by entropy
    aggregation.py  token losses to a scalar, and the loss types by name
    objective.py    all of it, put together by one configuration object

Shapes: S samples (one sample is one step of one trajectory), T tokens of the longest response, M response tokens
in all (M = mask.sum()), V tokens of the vocabulary. `mask` is a (S, T) boolean tensor, True on response tokens.

Three policies: mu sampled the tokens (its log-probabilities are on record), pi_old is the trainer's policy before the
update, pi the one that is trained. pi_old / mu is the engine's gap and what corrections weigh; pi / pi_old is the
ratio that is clipped.

Sources: DART (arXiv 2509.23866) for the objective, the truncated weight and the selection of steps; DAPO (2503.14476)
for the asymmetric clip and the mean over tokens; dual clip 1912.09729; GSPO 2507.18071; Dr. GRPO 2503.20783; CISPO in
MiniMax-M1 2506.13585; BNPO 2506.02864; IcePop and its kin as in TRL's `vllm_importance_sampling_mode`; k1, k2, k3 in
Schulman's "Approximating KL divergence". Where TRL has the same thing, results are equal to 1e-6 (tests say so) and
names are TRL's.

Invariants:
    - Everything is computed in float32, whatever the model's precision: a log-softmax of bfloat16 logits is wrong
      by up to 0.05 nats, which the importance weight would then "correct".
    - Sums over micro-batches equal the value over the whole batch: normalisers are arguments, never recomputed.
    - Entries where `mask` is False never influence a result, even when they are not finite.
"""

from dart_train.trainer.losses.aggregation import LossType, Normalizer, aggregate, imitation
from dart_train.trainer.losses.corrections import (
    CorrectionMode,
    correction_weight,
    effective_sample_share,
    geometric_mask,
    truncated_weight,
)
from dart_train.trainer.losses.divergence import KLEstimator, divergence
from dart_train.trainer.losses.objective import Objective, ObjectiveConfig, Scored, objective
from dart_train.trainer.losses.selection import high_entropy_steps, high_entropy_tokens
from dart_train.trainer.losses.surrogates import (
    RatioLevel,
    cispo_loss,
    clip_fractions,
    clipped_loss,
    importance_ratio,
)
from dart_train.trainer.losses.token_logprobs import masked_mean, token_logprobs

__all__ = [
    "CorrectionMode",
    "KLEstimator",
    "LossType",
    "Normalizer",
    "Objective",
    "ObjectiveConfig",
    "RatioLevel",
    "Scored",
    "aggregate",
    "cispo_loss",
    "clip_fractions",
    "clipped_loss",
    "correction_weight",
    "divergence",
    "effective_sample_share",
    "geometric_mask",
    "high_entropy_steps",
    "high_entropy_tokens",
    "imitation",
    "importance_ratio",
    "masked_mean",
    "objective",
    "token_logprobs",
    "truncated_weight",
]
