"""The loss of the trainer as pure functions on tensors. No model, no trainer state.

    surrogates.py       the losses that may be chosen, and how each weighs tokens against one another
    advantages.py       rewards of a group to advantages
    ratios.py           importance ratios and weights between two policies, and estimates of their KL
    equal_screens.py    advantages of steps that were decided in front of the same screen
    teacher_loss.py     what a teacher adds to the advantages
    selection.py        which tokens or steps count, by entropy
    dart_objective.py   all of it, put together by one configuration object

The first two are imported without torch: every process of a run reads the configuration, which names their classes.

Shapes: S samples (one sample is one step of one trajectory), T tokens of the longest response, M response tokens
in all (M = mask.sum()). `mask` is a (S, T) boolean tensor, True on response tokens.

Three policies: mu sampled the tokens (its log-probabilities are on record), pi_old is the trainer's policy before the
update, pi the one that is trained. pi_old / mu is the engine's gap and what corrections weigh; pi / pi_old is the
ratio that is clipped.

Sources: DART (arXiv 2509.23866) for the objective, the truncated weight and the selection of steps; DAPO (2503.14476)
for the asymmetric clip and the mean over tokens; dual clip 1912.09729; GSPO 2507.18071; Dr. GRPO 2503.20783; CISPO in
MiniMax-M1 2506.13585; BNPO 2506.02864; IcePop and its kin as in TRL's `vllm_importance_sampling_mode`; k1, k2, k3 in
Schulman's "Approximating KL divergence". Where TRL has the same thing, results are equal to 1e-6 (tests say so) and
names are TRL's.

Invariants:
    - Everything is computed in float32, regardless of the model's precision: a log-softmax of bfloat16 logits is wrong
      by up to 0.05 nats, which the importance weight would then "correct".
    - Sums over micro-batches equal the value over the whole batch: normalisers are arguments, never recomputed.
    - Entries where `mask` is False never influence a result, even when they are not finite.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dart_train.trainer.losses.advantages import ADVANTAGES as ADVANTAGES
    from dart_train.trainer.losses.advantages import GroupRewards as GroupRewards
    from dart_train.trainer.losses.dart_objective import Objective as Objective
    from dart_train.trainer.losses.dart_objective import ObjectiveConfig as ObjectiveConfig
    from dart_train.trainer.losses.dart_objective import Scored as Scored
    from dart_train.trainer.losses.dart_objective import objective as objective
    from dart_train.trainer.losses.ratios import correction_weight as correction_weight
    from dart_train.trainer.losses.ratios import divergence as divergence
    from dart_train.trainer.losses.ratios import effective_sample_share as effective_sample_share
    from dart_train.trainer.losses.ratios import geometric_mask as geometric_mask
    from dart_train.trainer.losses.ratios import importance_ratio as importance_ratio
    from dart_train.trainer.losses.ratios import masked_mean as masked_mean
    from dart_train.trainer.losses.ratios import off_policy_mask as off_policy_mask
    from dart_train.trainer.losses.selection import EntropySelection as EntropySelection
    from dart_train.trainer.losses.selection import high_entropy_steps as high_entropy_steps
    from dart_train.trainer.losses.selection import high_entropy_tokens as high_entropy_tokens
    from dart_train.trainer.losses.surrogates import CISPO as CISPO
    from dart_train.trainer.losses.surrogates import GRPO as GRPO
    from dart_train.trainer.losses.surrogates import LOSSES as LOSSES
    from dart_train.trainer.losses.surrogates import Loss as Loss
    from dart_train.trainer.losses.surrogates import Normalizer as Normalizer
    from dart_train.trainer.losses.surrogates import Terms as Terms
    from dart_train.trainer.losses.surrogates import nll_loss as nll_loss
    from dart_train.trainer.losses.surrogates import step_mean as step_mean
    from dart_train.trainer.losses.surrogates import token_mean as token_mean
    from dart_train.trainer.losses.teacher_loss import taught_advantages as taught_advantages

_MODULES = ("surrogates", "advantages", "ratios", "selection", "teacher_loss", "dart_objective")


def __getattr__(name: str) -> Any:
    for module in _MODULES:
        found = importlib.import_module(f"{__name__}.{module}")
        if not name.startswith("_") and hasattr(found, name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
