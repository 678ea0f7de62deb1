"""Trajectories of a lease as members of their groups: their trainable steps and their advantages.

A member has the rewards that its group is compared by. Its samples carry advantage and weight. A group of one, and one
without variance, have advantages of 0 and are counted; a step without recorded log-probabilities has a correction
weight of 1 and is counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_gym.core.outcomes import TerminalState
from dart_train.core.data_states import POLICY_SOURCES
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.batches.collator import Collator, Problem, Sample
from dart_train.trainer.losses.advantages import (
    Advantage,
    GroupRewards,
    StepAdvantage,
    rewards_to_go,
    shortest_path_rewards,
    trajectory_weights,
)

LIMITS = (TerminalState.STEP_LIMIT, TerminalState.TIME_LIMIT)
TeacherWhen = Literal["never", "failed", "always"]


class GroupLike(Protocol):
    """The attributes that a group must have; `dart_train.data.Group` has them."""

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """The rollouts that are compared with one another."""

    @property
    def injected(self) -> frozenset[str]:
        """Ids of those that come from the experience pool."""

    def version(self, trajectory: Trajectory) -> int | None:
        """The version that the staleness of a member counts from; None for one of the pool."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Settings for making a batch of leased groups.

    Attributes:
        balance_trajectories: weigh steps so that every trajectory counts the same, however long it is.
        max_completion_length: longest response allowed, in tokens: the constant of `losses.constant_mean`.
        pool_weights: importance weight of successes from the experience pool: by what was "recorded" where it was, or
            "one" for all of them.
        shortest_path: how much less a success counts that took longer than the group's shortest, in [0, 1].
        negative_advantage_scale: factor of the negative advantages, in [0, 1].
        unreadable_advantage: highest advantage of a response that ended its episode unread; None for no such bound.
        rehearsal_steps: parts of rehearsed steps alone, behind the mini-batches.
        teacher_when: groups in which what a teacher said is trained on: none, those in which no rollout got any reward,
            or all.
    """

    advantage: Advantage = StepAdvantage()
    balance_trajectories: bool = False
    shuffle_rewards: bool = False
    max_completion_length: int = 500
    pool_weights: Literal["recorded", "one"] = "recorded"
    shortest_path: float = 0.0
    mask_step_limit: bool = False
    negative_advantage_scale: float = 1.0
    unreadable_advantage: float | None = None
    mini_batches: int = 1
    rehearsal_steps: int = 0
    max_samples: int | None = None
    teacher_when: TeacherWhen = "never"

    def teaches(self, group: GroupLike) -> bool:
        """Return whether what a teacher said of a group's members is trained on."""
        if self.teacher_when == "failed":  # a success that joined it from the pool is none of the policy's
            return not any(t.score for t in group.trajectories if t.trajectory_id not in group.injected)
        return self.teacher_when == "always"


@dataclass(slots=True)
class Member:
    """A trajectory, its version (None from the pool), its reward, and the trainable steps, each with its sample.

    Attributes:
        targets: a teacher's answers in states that it came to.
    """

    trajectory: Trajectory
    version: int | None
    reward: float
    steps: tuple[Step, ...]
    samples: tuple[Sample, ...]
    targets: tuple[Sample, ...] = ()


def member_of(
    trajectory: Trajectory, group: GroupLike, collator: Collator, settings: BatchSettings, problems: list[Problem]
) -> Member:
    """Return what of a trajectory can be trained on; the problems of its other steps are appended."""
    whole = settings.pool_weights == "one" and trajectory.trajectory_id in group.injected
    taught = settings.teaches(group)
    usable: list[tuple[Step, Sample]] = []
    targets: list[Sample] = []
    for step in trajectory.steps:
        sample = Sample.from_step(replace(step, logprobs=()) if whole else step)
        if taught and step.target_ids:
            targets += trainable([lesson_of(step)], collator, problems)
        if taught and len(step.teacher_logprobs) == len(step.response_ids):
            sample = replace(sample, teacher_logprobs=step.teacher_logprobs)
        if problem := collator.problem(sample):
            problems.append(problem)
        else:
            usable.append((step, sample))
    steps, samples = tuple(zip(*usable, strict=True)) or ((), ())
    return Member(trajectory, group.version(trajectory), _reward(trajectory), steps, samples, tuple(targets))


def lesson_of(step: Step) -> Sample:
    """Return a teacher's answer to a step's prompt as what is to be imitated."""
    return Sample(step.prompt_ids, step.image_hashes, step.target_ids, supervised=True, taught=True)


def lessons_of(trajectory: Trajectory) -> list[Sample]:
    """Return the answers of a teacher in the states of an episode; none where it said how likely something is."""
    return [lesson_of(step) for step in trajectory.steps if step.target_ids]


def trainable(samples: Iterable[Sample], collator: Collator, problems: list[Problem]) -> list[Sample]:
    """Return the samples that can be trained on; the problems of the others are appended."""
    found: list[Sample] = []
    for sample in samples:
        if problem := collator.problem(sample):
            problems.append(problem)
        else:
            found.append(sample)
    return found


def adjust_rewards(group: Sequence[Member], settings: BatchSettings) -> None:
    """Let a group's successes count less where they took longer than the shortest of them."""
    if settings.shortest_path and group:
        rewards = np.array([member.reward for member in group], np.float64)
        steps = [len(member.trajectory.steps) for member in group]
        for member, reward in zip(group, shortest_path_rewards(rewards, steps, settings.shortest_path), strict=True):
            member.reward = float(reward)


def masked(member: Member, settings: BatchSettings) -> bool:
    """Return whether a trajectory is left out of the loss. Its reward stays in its group's baseline (DAPO, TRL)."""
    return settings.mask_step_limit and member.trajectory.terminal in LIMITS


def samples_of(
    members: Sequence[Sequence[Member]], settings: BatchSettings, version: int, collator: Collator
) -> list[Sample]:
    """All samples of a batch with their advantages and weights, masked ones included."""
    flat = [member for group in members for member in group]
    everything: dict[str, Any] = {
        "batch_rewards": np.array([member.reward for member in flat], np.float64),
        "batch_lengths": np.array([len(member.samples) for member in flat], np.int64),
        "load_screen": collator.load_screen,
    }
    weights = iter(trajectory_weights([len(member.samples) for member in flat]))
    found: list[Sample] = []
    number = 0
    for place, group in enumerate(members):
        rewards = GroupRewards(
            np.array([member.reward for member in group], np.float64),
            np.array([len(member.samples) for member in group], np.int64),
            tuple(member.steps for member in group),
            **everything,
        )
        to_go = iter(rewards_to_go([[step.reward or 0.0 for step in member.steps] for member in group]))
        for member, advantage in zip(group, settings.advantage(rewards), strict=True):
            weight = float(next(weights)) if settings.balance_trajectories else 1.0
            each = np.broadcast_to(advantage, len(member.samples))
            each = np.where(each < 0, each * settings.negative_advantage_scale, each)
            if (bound := settings.unreadable_advantage) is not None:
                unread = [step.terminal == TerminalState.PARSE_ERROR for step in member.steps]
                each = np.where(unread, np.minimum(each, bound), each)
            each = each + next(to_go)
            found += [
                replace(
                    sample,
                    advantage=float(own),
                    group=place,
                    trajectory=number,
                    weight=weight,
                    stale=member.trajectory.source in POLICY_SOURCES and sample.version < version,
                )
                for sample, own in zip(member.samples, each, strict=True)
            ]
            number += 1
    return found


def metrics_of(members: Sequence[Sequence[Member]], samples: Sequence[Sample], version: int) -> dict[str, float]:
    """Numbers about the data, by log name."""
    flat = [member for group in members for member in group]
    rewards = [[member.reward for member in group] for group in members]
    spreads = [float(np.std(own, ddof=1)) if len(own) > 1 else 0.0 for own in rewards]
    ages = [version - item.version for item in flat if item.version is not None] or [0]
    lengths = [len(sample.response_ids) for sample in samples]
    return {
        "reward": float(np.mean([member.reward for member in flat])),
        "score": float(np.mean([member.trajectory.score or 0.0 for member in flat])),
        "reward_std": float(np.mean(spreads)),
        "frac_reward_zero_std": float(np.mean([spread == 0 for spread in spreads])),
        "frac_no_signal": float(np.mean([_teaches_nothing(group) for group in members])),
        "staleness/mean": float(np.mean(ages)),
        "staleness/max": float(max(ages)),
        "completions/mean_length": float(np.mean(lengths)),
        "completions/max_length": float(max(lengths)),
        "batch/groups": float(len(members)),
        "batch/groups_of_one": float(sum(len(own) == 1 for own in rewards)),
        "batch/trajectories": float(len(flat)),
        "batch/samples": float(len(samples)),
        "batch/at_step_limit": float(sum(member.trajectory.terminal in LIMITS for member in flat)),
        "batch/unreadable": sum(member.trajectory.terminal is TerminalState.PARSE_ERROR for member in flat) / len(flat),
        "batch/behaviour_unknown": float(sum(not sample.logprobs for sample in samples)),
    }


def taught_metrics(
    groups: Sequence[GroupLike], members: Sequence[Sequence[Member]], settings: BatchSettings
) -> dict[str, float]:
    """Return the number of steps whose lessons are used."""
    asked = [group for group, known in zip(members, groups, strict=True) if settings.teaches(known)]
    targets = sum(len(member.targets) for group in asked for member in group)
    judged = sum(bool(sample.teacher_logprobs) for group in asked for member in group for sample in member.samples)
    return {"teacher/steps": float(targets + judged)}


def _teaches_nothing(group: Sequence[Member]) -> bool:
    """Return whether all rewards of a group are equal, and no teacher commented on it."""
    if any(member.targets or any(sample.teacher_logprobs for sample in member.samples) for member in group):
        return False
    return (
        len({member.reward for member in group}) <= 1 and len({member.trajectory.whole_reward for member in group}) <= 1
    )


def _reward(trajectory: Trajectory) -> float:
    if trajectory.score is None:
        raise TrainingError(
            f"trajectory {trajectory.trajectory_id} has no reward (it ended in {trajectory.terminal}) and must not be "
            "leased: an error is never a reward of 0"
        )
    return trajectory.training_reward
