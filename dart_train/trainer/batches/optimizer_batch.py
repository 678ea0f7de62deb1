"""From leased groups to one optimizer batch: rewards become advantages, steps become micro-batches.

What cannot be trained on is left out by a named rule and counted ("dropped/<rule>" in the metrics): empty responses,
log-probabilities that are none, tokens that are never sampled, images that are not the prompt's, steps longer than the
model's context. Nothing left is an error. A group of one, and one without variance, have advantages of 0 and are
counted; a step without recorded log-probabilities has a correction weight of 1 and is counted.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.batches.collator import Collator, MicroBatch, Problem, Sample, count_problems, equal_counts
from dart_train.trainer.losses import (
    EntropySelection,
    GroupRewards,
    Normalizer,
    high_entropy_steps,
    high_entropy_tokens,
    masked_mean,
)
from dart_train.trainer.losses.advantages import Advantage, StepAdvantage, trajectory_weights
from dart_train.trainer.weights.ranks import ALONE, Ranks

_log = logging.getLogger(__name__)


class GroupLike(Protocol):
    """What a group must have: `dart_train.data.Group` does."""

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """The rollouts that are compared with one another."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How leased groups become a batch.

    Attributes:
        advantage: rewards of a group to the advantages of its steps.
        balance_trajectories: weigh steps so that every trajectory counts the same, however long it is.
        shuffle_rewards: control: permute rewards within each lease.
        max_completion_length: longest response allowed, in tokens: the constant of `losses.constant_mean`.
    """

    advantage: Advantage = StepAdvantage()
    balance_trajectories: bool = False
    shuffle_rewards: bool = False
    max_completion_length: int = 500


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
        samples: of this rank, that the micro-batches are made of.
        max_tokens: of a micro-batch.
    """

    micro_batches: list[MicroBatch]
    normalizer: Normalizer
    metrics: dict[str, float]
    trajectory_ids: tuple[str, ...]
    newest_version: int = 0
    old_logprobs: list[Tensor] | None = field(default=None, repr=False)
    kept: list[Tensor] | None = field(default=None, repr=False)
    samples: list[Sample] = field(default_factory=list, repr=False)
    max_tokens: int = 0

    def split(self, collator: Collator, max_tokens: int, ranks: Ranks) -> None:
        """Make smaller micro-batches of the same samples; what was computed for the old ones moves along."""
        old = [_by_sample(self.micro_batches, values) for values in (self.old_logprobs, self.kept)]
        found = collator.micro_batches(self.samples, max_tokens, checked=True)
        self.micro_batches = equal_counts(found, max(ranks.gather(len(found))))
        self.max_tokens = max_tokens
        self.old_logprobs, self.kept = (_regrouped(self.micro_batches, values) for values in old)

    def select(self, entropies: Sequence[Tensor], selection: EntropySelection, ranks: Ranks = ALONE) -> None:
        """Fill in `kept`: the steps or tokens of highest entropy. Called by all ranks.

        Args:
            entropies: (S, T) of each micro-batch in nats, under the policy before the first update.
            selection: what is kept; quantiles are those of all ranks' data.
            ranks: who shares the batch.
        """
        if selection.level == "token":
            self.kept, left = _keep_tokens(self.micro_batches, entropies, selection.keep, ranks)
            self.normalizer = replace(self.normalizer, kept_tokens=left)
        else:
            self.kept = _keep_steps(self.micro_batches, entropies, selection, ranks)


@dataclass(slots=True)
class _Member:
    """A trajectory, its reward in this batch, and the steps that can be trained on, each with its sample."""

    trajectory: Trajectory
    reward: float
    steps: tuple[Step, ...]
    samples: tuple[Sample, ...]


def build_batch(
    groups: Sequence[GroupLike],
    collator: Collator,
    settings: BatchSettings,
    *,
    version: int,
    rng: random.Random,
    max_tokens: int,
    unpublished: int = 0,
    demonstrations: Sequence[Sample] = (),
    ranks: Ranks = ALONE,
) -> OptimizerBatch:
    """Turn leased groups into a batch.

    With several ranks each makes the whole batch of samples, and tensors of its share: advantages, selections and
    normalisers are those of one process.

    Args:
        groups: at least one.
        collator: makes the tensors.
        settings: how rewards become advantages and weights.
        version: of the weights that are about to be trained, for staleness.
        rng: for the control that shuffles rewards.
        max_tokens: of a micro-batch, padding included.
        unpublished: updates since that version: with any, no engine can have sampled from these weights.
        demonstrations: samples whose cross-entropy is minimised beside.
        ranks: who shares the batch.

    Raises:
        TrainingError: no step to train on.
    """
    problems: list[Problem] = []
    members = [[_member(item, collator, problems) for item in group.trajectories] for group in groups]
    members = [[member for member in group if member.samples] for group in members]
    flat = [member for group in members for member in group]
    if not flat:
        raise TrainingError(_nothing_left(problems))
    _say(problems, sum(len(member.samples) for member in flat))
    if settings.shuffle_rewards:
        rewards = [member.reward for member in flat]
        rng.shuffle(rewards)
        for member, reward in zip(flat, rewards, strict=True):
            member.reward = reward
    newest = version + (1 if unpublished else 0)
    samples = _samples(members, settings, newest)
    metrics = _metrics(members, samples, version) | count_problems(problems)
    first = len(flat)
    shown = [replace(sample, supervised=True, trajectory=first + sample.trajectory) for sample in demonstrations]
    own = rank_samples([*samples, *shown], ranks)
    batch = OptimizerBatch(
        micro_batches=[],
        normalizer=_normalizer([*samples, *shown], own, settings, ranks),
        metrics=metrics,
        trajectory_ids=tuple(member.trajectory.trajectory_id for member in flat),
        newest_version=max(member.trajectory.newest_version for member in flat),
        samples=own,
    )
    batch.split(collator, max_tokens, ranks)
    counted = [micro for micro in batch.micro_batches if not micro.fills_up]
    numbers = {
        "batch/micro_batches": float(len(counted)),
        "batch/rows": float(sum(len(micro.input_ids) for micro in counted)),
        "batch/input_tokens": float(sum(micro.input_ids.numel() for micro in counted)),
    }
    for rank in ranks.gather(numbers):
        for name, value in rank.items():
            metrics[name] = metrics.get(name, 0.0) + value
    return batch


def rank_samples(samples: Sequence[Sample], ranks: Ranks) -> list[Sample]:
    """The samples of one rank: whole trajectories (their steps may share a row), the longest to who has least.

    Every rank comes to the same division. A rank for which nothing is left takes a copy of the shortest sample with a
    weight of 0: it runs the model as the others do, and nothing of it counts.
    """
    if ranks.count == 1:
        return list(samples)
    work: dict[int, int] = {}
    for sample in samples:
        work[sample.trajectory] = work.get(sample.trajectory, 0) + sample.length
    loads, owner = [0] * ranks.count, {}
    for trajectory in sorted(work, key=lambda name: (-work[name], name)):
        least = loads.index(min(loads))
        loads[least] += work[trajectory]
        owner[trajectory] = least
    own = [sample for sample in samples if owner[sample.trajectory] == ranks.rank]
    return own or [replace(min(samples, key=lambda sample: sample.length), weight=0.0)]


def _normalizer(samples: Sequence[Sample], own: Sequence[Sample], settings: BatchSettings, ranks: Ranks) -> Normalizer:
    reinforced = [sample for sample in samples if not sample.supervised]
    mine = [sample for sample in own if not sample.supervised and sample.weight]
    return Normalizer(
        tokens=sum(len(sample.response_ids) for sample in reinforced),
        samples=len(reinforced),
        max_tokens=settings.max_completion_length,
        rank_tokens=sum(len(sample.response_ids) for sample in mine) if ranks.count > 1 else None,
        ranks=ranks.count,
        supervised_tokens=sum(len(sample.response_ids) for sample in samples if sample.supervised),
    )


def _keep_steps(
    batches: Sequence[MicroBatch], entropies: Sequence[Tensor], selection: EntropySelection, ranks: Ranks
) -> list[Tensor]:
    """(S,) of each micro-batch: the steps of highest mean entropy, of each group or of the whole batch."""
    pairs = list(zip(batches, entropies, strict=True))
    where = torch.cat([micro.reinforced.to(values.device) > 0 for micro, values in pairs])
    means = [masked_mean(values, micro.mask.to(values.device), -1) for micro, values in pairs]
    groups = torch.cat([micro.groups for micro in batches]).to(where.device)
    if selection.scope == "batch":
        groups = torch.zeros_like(groups)
    all_means, own = _of_all(torch.cat(means)[where], ranks)
    all_groups, _ = _of_all(groups[where], ranks)
    kept = torch.ones_like(where)
    kept[where] = high_entropy_steps(all_means, all_groups, selection.keep)[own]
    return list(kept.split([len(mean) for mean in means]))


def _keep_tokens(
    batches: Sequence[MicroBatch], entropies: Sequence[Tensor], keep: float, ranks: Ranks
) -> tuple[list[Tensor], int]:
    """(S, T) of each micro-batch: the tokens of highest entropy; and how many they are on all ranks."""
    masks = [
        micro.mask.to(values.device) & (micro.reinforced.to(values.device) > 0)[:, None]
        for micro, values in zip(batches, entropies, strict=True)
    ]
    flat = torch.cat([values[mask] for values, mask in zip(entropies, masks, strict=True)])
    everything, own = _of_all(flat, ranks)
    whole = high_entropy_tokens(everything, torch.ones_like(everything, dtype=torch.bool), keep)
    parts = whole[own].split([int(mask.sum()) for mask in masks])
    kept = [torch.zeros_like(mask).masked_scatter(mask, part) for mask, part in zip(masks, parts, strict=True)]
    return kept, int(whole.sum())


def _of_all(values: Tensor, ranks: Ranks) -> tuple[Tensor, slice]:
    """(N,) values of all ranks one after the other, and where this rank's are."""
    parts = ranks.gather(values.cpu())
    start = sum(len(part) for part in parts[: ranks.rank])
    return torch.cat(parts).to(values.device), slice(start, start + len(values))


def _by_sample(batches: Sequence[MicroBatch], values: Sequence[Tensor] | None) -> dict[int, Tensor] | None:
    """What was computed for micro-batches, (S,) or (S, T), by the samples' places."""
    if values is None:
        return None
    pairs = zip(batches, values, strict=True)
    return {int(place): row for micro, part in pairs for place, row in zip(micro.sample_index, part, strict=True)}


def _regrouped(batches: Sequence[MicroBatch], rows: dict[int, Tensor] | None) -> list[Tensor] | None:
    """The same in the order of other micro-batches of the same samples."""
    if rows is None:
        return None
    found: list[Tensor] = []
    for micro in batches:
        own = [rows[int(place)] for place in micro.sample_index]
        if own[0].ndim:
            width = micro.mask.shape[1]
            own = [torch.nn.functional.pad(row[:width], (0, max(width - len(row), 0))) for row in own]
        found.append(torch.stack(own))
    return found


def _member(trajectory: Trajectory, collator: Collator, problems: list[Problem]) -> _Member:
    """What of a trajectory can be trained on; the problems of its other steps are appended."""
    usable: list[tuple[Step, Sample]] = []
    for step in trajectory.steps:
        sample = Sample.from_step(step)
        if problem := collator.problem(sample):
            problems.append(problem)
        else:
            usable.append((step, sample))
    steps, samples = tuple(zip(*usable, strict=True)) or ((), ())
    return _Member(trajectory, _reward(trajectory), steps, samples)


def _samples(members: Sequence[Sequence[_Member]], settings: BatchSettings, version: int) -> list[Sample]:
    """All samples of a batch with their advantages and weights."""
    flat = [member for group in members for member in group]
    weights = iter(trajectory_weights([len(member.samples) for member in flat]))
    found: list[Sample] = []
    number = 0
    for place, group in enumerate(members):
        rewards = GroupRewards(
            np.array([member.reward for member in group], np.float64),
            np.array([len(member.samples) for member in group], np.int64),
            tuple(member.steps for member in group),
        )
        for member, advantage in zip(group, settings.advantage(rewards), strict=True):
            weight = float(next(weights)) if settings.balance_trajectories else 1.0
            stale = member.trajectory.source == "rollout"
            found += [
                replace(
                    sample, advantage=float(own), group=place, trajectory=number, weight=weight,
                    stale=stale and sample.version < version,
                )
                for sample, own in zip(member.samples, np.broadcast_to(advantage, len(member.samples)), strict=True)
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
    if trajectory.score is None:
        raise TrainingError(
            f"trajectory {trajectory.trajectory_id} has no reward (it ended in {trajectory.terminal}) and must not be "
            "leased: an error is never a reward of 0"
        )
    return trajectory.score
