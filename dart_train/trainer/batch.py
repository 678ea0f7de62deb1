"""From leased groups to one optimizer batch: rewards become advantages, steps become micro-batches.

What cannot be trained on is left out by a named rule and counted ("dropped/<rule>" in the metrics): empty responses,
log-probabilities that are none, tokens that are never sampled, images that are not the prompt's, steps longer than the
model's context. Nothing left is an error. A group of one, and one without variance, have advantages of 0 and are
counted; a step without recorded log-probabilities has a correction weight of 1 and is counted.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from torch import Tensor

from dart_train.trainer.advantages import group_advantages, trajectory_weights
from dart_train.trainer.collate import Collator, MicroBatch, Problem, Sample, count_problems
from dart_train.trainer.config import DartGRPOConfig
from dart_train.trainer.errors import TrainingError
from dart_train.trainer.losses import Normalizer
from dart_train.trajectory import Trajectory

_log = logging.getLogger(__name__)


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
        kept: of each micro-batch, once computed: which steps (S,) or tokens (S, T) the entropy selection keeps.
    """

    micro_batches: list[MicroBatch]
    normalizer: Normalizer
    metrics: dict[str, float]
    trajectory_ids: tuple[str, ...]
    newest_version: int = 0
    old_logprobs: list[Tensor] | None = field(default=None, repr=False)
    kept: list[Tensor] | None = field(default=None, repr=False)


@dataclass(slots=True)
class _Member:
    """A trajectory, its reward in this batch, and the steps that can be trained on."""

    trajectory: Trajectory
    reward: float
    samples: list[Sample]


def build_batch(
    groups: Sequence[GroupLike],
    collator: Collator,
    config: DartGRPOConfig,
    *,
    version: int,
    rng: random.Random,
    unpublished: int = 0,
) -> OptimizerBatch:
    """Turn leased groups into a batch.

    Args:
        groups: at least one.
        collator: makes the tensors.
        config: of the trainer.
        version: of the weights that are about to be trained, for staleness.
        rng: for the control that shuffles rewards.
        unpublished: updates since that version: with any, no engine can have sampled from these weights.

    Raises:
        TrainingError: no step to train on.
    """
    problems: list[Problem] = []
    members = [
        [_Member(item, _reward(item), list(_usable(item, collator, problems))) for item in group.trajectories]
        for group in groups
    ]
    members = [[member for member in group if member.samples] for group in members]
    flat = [member for group in members for member in group]
    if not flat:
        raise TrainingError(_nothing_left(problems))
    _say(problems, sum(len(member.samples) for member in flat))
    if config.shuffle_rewards:
        rewards = [member.reward for member in flat]
        rng.shuffle(rewards)
        for member, reward in zip(flat, rewards, strict=True):
            member.reward = reward
    newest = version + (1 if unpublished else 0)
    samples = _samples(members, config, newest)
    lengths = [len(sample.response_ids) for sample in samples]
    batches = collator.micro_batches(samples, config.micro_batch_tokens, checked=True)
    metrics = _metrics(members, samples, version) | count_problems(problems)
    metrics |= {
        "batch/micro_batches": float(len(batches)),
        "batch/rows": float(sum(len(batch.input_ids) for batch in batches)),
        "batch/input_tokens": float(sum(batch.input_ids.numel() for batch in batches)),
    }
    return OptimizerBatch(
        micro_batches=batches,
        normalizer=Normalizer(sum(lengths), len(samples), config.max_completion_length),
        metrics=metrics,
        trajectory_ids=tuple(member.trajectory.trajectory_id for member in flat),
        newest_version=max(member.trajectory.newest_version for member in flat),
    )


def _usable(trajectory: Trajectory, collator: Collator, problems: list[Problem]) -> Iterator[Sample]:
    """The samples of a trajectory that have no problem; the problems of the others are appended."""
    for step in trajectory.steps:
        sample = Sample.from_step(step)
        problem = collator.problem(sample)
        if problem is None:
            yield sample
        else:
            problems.append(problem)


def _samples(members: Sequence[Sequence[_Member]], config: DartGRPOConfig, version: int) -> list[Sample]:
    """All samples of a batch with their advantages and weights."""
    flat = [member for group in members for member in group]
    weights = iter(trajectory_weights([len(member.samples) for member in flat]))
    found: list[Sample] = []
    number = 0
    for place, group in enumerate(members):
        advantages = group_advantages(
            [member.reward for member in group],
            [len(member.samples) for member in group],
            scale_rewards=config.scale_rewards,  # type: ignore[arg-type]  # checked by the configuration
            level=config.advantage_level,  # type: ignore[arg-type]
        )
        for member, advantage in zip(group, advantages, strict=True):
            weight = float(next(weights)) if config.balance_trajectories else 1.0
            stale = member.trajectory.source == "rollout"
            found += [
                replace(
                    sample, advantage=float(advantage), group=place, trajectory=number, weight=weight,
                    stale=stale and sample.version < version,
                )
                for sample in member.samples
            ]  # fmt: skip
            number += 1
    return found


def _metrics(members: Sequence[Sequence[_Member]], samples: Sequence[Sample], version: int) -> dict[str, float]:
    """Numbers about the data, by log name."""
    flat = [member for group in members for member in group]
    rewards = [[member.reward for member in group] for group in members]
    spreads = [float(np.std(own, ddof=1)) if len(own) > 1 else 0.0 for own in rewards]
    ages = [version - item.trajectory.oldest_version for item in flat if item.trajectory.source == "rollout"] or [0]
    lengths = [len(sample.response_ids) for sample in samples]
    return {
        "reward": float(np.mean([member.reward for member in flat])),
        "reward_std": float(np.mean(spreads)),
        "frac_reward_zero_std": float(np.mean([spread == 0 for spread in spreads])),
        "staleness/mean": float(np.mean(ages)),
        "staleness/max": float(max(ages)),
        "completions/mean_length": float(np.mean(lengths)),
        "completions/max_length": float(max(lengths)),
        "batch/groups": float(len(members)),
        "batch/groups_of_one": float(sum(len(own) == 1 for own in rewards)),
        "batch/trajectories": float(len(flat)),
        "batch/samples": float(len(samples)),
        "batch/behaviour_unknown": float(sum(not sample.logprobs for sample in samples)),
    }


def _say(problems: Sequence[Problem], kept: int) -> None:
    if problems:
        counts = {name: int(count) for name, count in count_problems(problems).items() if count}
        _log.warning(
            "%d of %d steps cannot be trained on and were left out (%s); the first: %s",
            len(problems), len(problems) + kept, counts, problems[0].text,
        )  # fmt: skip


def _nothing_left(problems: Sequence[Problem]) -> str:
    words = "the lease holds no step with a response: look at what the rollout service recorded"
    other = next((problem.text for problem in problems if problem.reason != "empty_response"), "")
    return f"the lease holds no step that can be trained on: {other}" if other else words


def _reward(trajectory: Trajectory) -> float:
    if trajectory.reward is None:
        raise TrainingError(
            f"trajectory {trajectory.trajectory_id} has no reward (it ended in {trajectory.terminal}) and must not be "
            "leased: an error is never a reward of 0"
        )
    return trajectory.reward
