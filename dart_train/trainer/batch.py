"""From leased groups to one optimizer batch: rewards become advantages, steps become micro-batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from dart_train.trainer.advantages import group_advantages
from dart_train.trainer.collate import Collator, MicroBatch, Sample
from dart_train.trainer.config import DartGRPOConfig
from dart_train.trainer.errors import TrainingError
from dart_train.trainer.losses import Normalizer
from dart_train.trajectory import Trajectory


class GroupLike(Protocol):
    """What a group must have: `dart_train.data.Group` does."""

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """The rollouts that are compared with one another."""


@dataclass(slots=True)
class OptimizerBatch:
    """Everything that one optimizer step trains on.

    Attributes:
        micro_batches: to be run one after the other; their gradients add up to the batch's.
        normalizer: what their losses are divided by.
        metrics: numbers about the data, by log name.
        trajectory_ids: what it was made of.
        newest_version: newest weight version that any of it was sampled from.
        old_logprobs: (S, T) of each micro-batch, once computed.
        kept: (S,) of each micro-batch, which steps the entropy selection keeps, once computed.
    """

    micro_batches: list[MicroBatch]
    normalizer: Normalizer
    metrics: dict[str, float]
    trajectory_ids: tuple[str, ...]
    newest_version: int = 0
    old_logprobs: list[Tensor] | None = field(default=None, repr=False)
    kept: list[Tensor] | None = field(default=None, repr=False)


def build_batch(
    groups: Sequence[GroupLike],
    collator: Collator,
    config: DartGRPOConfig,
    *,
    version: int,
    rng: random.Random,
) -> OptimizerBatch:
    """Turn leased groups into a batch.

    Args:
        groups: at least one.
        collator: makes the tensors.
        config: of the trainer.
        version: of the weights that are about to be trained, for staleness.
        rng: for the control that shuffles rewards.

    Raises:
        TrainingError: no step to train on.
    """
    trajectories = [[item for item in group.trajectories if _responses(item)] for group in groups]
    flat = [item for members in trajectories for item in members]
    rewards = [_reward(item) for item in flat]
    if config.shuffle_rewards:
        rng.shuffle(rewards)
    samples: list[Sample] = []
    spreads: list[float] = []
    start = 0
    for number, members in enumerate(trajectories):
        own = rewards[start : start + len(members)]
        samples += _group_samples(members, own, config, group=number, first=start)
        spreads.append(float(np.std(own, ddof=1)) if len(own) > 1 else 0.0)
        start += len(members)
    if not samples:
        raise TrainingError("the lease holds no step with a response: look at what the rollout service recorded")
    staleness = [version - item.oldest_version for item in flat if item.source == "rollout"] or [0]
    lengths = [len(sample.response_ids) for sample in samples]
    metrics = {
        "reward": float(np.mean(rewards)),
        "reward_std": float(np.mean(spreads)),
        "frac_reward_zero_std": float(np.mean([spread == 0 for spread in spreads])),
        "staleness/mean": float(np.mean(staleness)),
        "staleness/max": float(max(staleness)),
        "completions/mean_length": float(np.mean(lengths)),
        "completions/max_length": float(max(lengths)),
        "batch/groups": float(len(groups)),
        "batch/trajectories": float(len(flat)),
        "batch/samples": float(len(samples)),
    }
    batches = collator.micro_batches(samples, config.micro_batch_tokens)
    return OptimizerBatch(
        micro_batches=batches,
        normalizer=Normalizer(sum(lengths), len(samples), config.max_completion_length),
        metrics={**metrics, "batch/micro_batches": float(len(batches))},
        trajectory_ids=tuple(item.trajectory_id for item in flat),
        newest_version=max(item.newest_version for item in flat),
    )


def _responses(trajectory: Trajectory) -> int:
    """How many steps of a trajectory can be trained on."""
    return sum(bool(step.sampled_ids) for step in trajectory.steps)


def _reward(trajectory: Trajectory) -> float:
    if trajectory.reward is None:
        raise TrainingError(
            f"trajectory {trajectory.trajectory_id} has no reward (it ended in {trajectory.terminal}) and must not be "
            "leased: an error is never a reward of 0"
        )
    return trajectory.reward


def _group_samples(
    members: Sequence[Trajectory], rewards: Sequence[float], config: DartGRPOConfig, *, group: int, first: int
) -> list[Sample]:
    advantages = group_advantages(
        rewards,
        [_responses(item) for item in members],
        scale_rewards=config.scale_rewards,  # type: ignore[arg-type]  # checked by the configuration
        level=config.advantage_level,  # type: ignore[arg-type]
    )
    return [
        Sample.from_step(step, advantage=float(advantage), group=group, trajectory=first + offset)
        for offset, (item, advantage) in enumerate(zip(members, advantages, strict=True))
        for step in item.steps
        if step.sampled_ids
    ]
