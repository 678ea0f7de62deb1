"""Statistics of a policy's episodes: success rates, pass@k and their intervals. Pure functions of values.

Invariants:
    - An episode that was lost (environment, evaluator, engine) is counted separately; it is never a failure of the
      policy.
    - A success is a score of 1.
    - Random numbers are of a fixed seed: equal episodes give equal intervals, in any order.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dart_agent.episodes.trajectory import Trajectory
from dart_gym.core.errors import DartGymError
from dart_gym.utils.rates import wilson_interval


class LostEpisodes(DartGymError):
    """Episodes were lost that a command was to play."""


RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Successes of a policy on one task, or on all of them together.

    Attributes:
        episodes: those with a score.
        lost: those that the environment lost in every attempt; not in `episodes`.
        low: lower end of the 95 % interval of the success rate.
        lost_by: how many were lost by "engine", "environment" and "evaluation".
        usage: the usage of hosted models for all episodes, including lost ones; see `Trajectory`.
    """

    task_id: str
    episodes: int
    successes: int
    lost: int
    mean_score: float
    low: float
    high: float
    mean_steps: float
    terminals: dict[str, int] = field(default_factory=dict)
    lost_by: dict[str, int] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Share of successes; NaN without episodes."""
        return self.successes / self.episodes if self.episodes else math.nan

    def __str__(self) -> str:
        interval = f"95 % interval {self.low:.2f} to {self.high:.2f}"
        lost = f", {self.lost} lost" if self.lost else ""
        return f"{self.task_id}: {self.successes} of {self.episodes} episodes, {interval}{lost}"


@dataclass(frozen=True, slots=True)
class GroupScore:
    """A policy on a group of tasks, such as those of one application. Every task counts alike.

    Attributes:
        tasks: those with at least one episode that counts.
        pass_1: mean over tasks of the success rate; NaN without tasks.
        pass_1_interval: 95 %: bootstrap over tasks, and never narrower than Wilson's of as many episodes.
        pass_k: mean over tasks of the probability that at least one of k attempts succeeds; NaN where no task has k.
        pass_k_interval: bootstrap over tasks, 95 %; None with fewer than two of them.
        pass_k_tasks: tasks with k episodes that count; the others cannot be in `pass_k`.
        total: all episodes of the group, every one counting alike.
    """

    name: str
    tasks: int
    pass_1: float
    pass_1_interval: tuple[float, float]
    k: int
    pass_k: float
    pass_k_interval: tuple[float, float] | None
    pass_k_tasks: int
    total: TaskScore


def pass_at_k(episodes: int, successes: int, k: int) -> float:
    """The unbiased estimate that at least one of k attempts succeeds: 1 - C(n - c, k) / C(n, k).

    It is the share of the subsets of k episodes with a success in them. (1 - (1 - c/n)^k would be biased.)

    Source: Chen et al., "Evaluating Large Language Models Trained on Code" (2021), equation 1.

    Raises:
        ValueError: 0 <= c <= n and 1 <= k <= n do not hold.
    """
    if not (0 <= successes <= episodes and 1 <= k <= episodes):
        raise ValueError(
            f"pass@{k} of {successes} successes in {episodes} episodes: both must be at most the number of episodes"
        )
    return 1.0 - math.comb(episodes - successes, k) / math.comb(episodes, k)


def bootstrap_interval(values: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of a mean of values in [0, 1] or differences of such; (0, 1) without values.

    It comes from `resamples` samples of the same size, drawn with replacement.
    """
    if not values:
        return 0.0, 1.0
    data = np.sort(np.asarray(values, np.float64))  # sorted: the order in which episodes ended changes nothing
    rng = np.random.default_rng(seed)
    chunk = max(1, 2_000_000 // len(data))
    means = np.concatenate(
        [
            data[rng.integers(len(data), size=(min(chunk, resamples - start), len(data)))].mean(axis=1)
            for start in range(0, resamples, chunk)
        ]
    )
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def _mean_interval(rates: Sequence[float], episodes: int) -> tuple[float, float]:
    """The 95 % interval of the mean of tasks' rates of success, in an episode or in one of k.

    Few tasks, or tasks with equal rates, have a bootstrap interval without width: 4 of 4 episodes would prove 100 %.
    Wilson's interval of as many independent episodes is the least that can be unknown.
    """
    if not rates:
        return 0.0, 1.0
    low, high = wilson_interval(round(mean(rates) * episodes), episodes)
    bootstrap_low, bootstrap_high = bootstrap_interval(rates)
    return min(low, bootstrap_low), max(high, bootstrap_high)


def score_task(task_id: str, episodes: Sequence[Trajectory]) -> TaskScore:
    """Count the episodes of one task (or of several, under a common name)."""
    scored = [episode for episode in episodes if not episode.lost_by]
    successes = sum(episode.success for episode in scored)
    low, high = wilson_interval(successes, len(scored))
    return TaskScore(
        task_id=task_id,
        episodes=len(scored),
        successes=successes,
        lost=len(episodes) - len(scored),
        mean_score=mean([episode.score or 0.0 for episode in scored]),
        low=low,
        high=high,
        mean_steps=mean([episode.num_actions for episode in scored]),
        terminals=_counts(str(episode.terminal) for episode in episodes),
        lost_by=_counts(episode.lost_by for episode in episodes if episode.lost_by),
        usage=_summed(episode.usage for episode in episodes),
    )


def total_score(scores: Sequence[TaskScore]) -> TaskScore:
    """All tasks together, every episode counting alike."""
    episodes, successes = sum(s.episodes for s in scores), sum(s.successes for s in scores)
    low, high = wilson_interval(successes, episodes)
    counted = [score for score in scores if score.episodes]
    return TaskScore(
        task_id="all",
        episodes=episodes,
        successes=successes,
        lost=sum(s.lost for s in scores),
        mean_score=sum(s.mean_score * s.episodes for s in counted) / episodes if episodes else math.nan,
        low=low,
        high=high,
        mean_steps=sum(s.mean_steps * s.episodes for s in counted) / episodes if episodes else math.nan,
        terminals=_summed(score.terminals for score in scores),
        lost_by=_summed(score.lost_by for score in scores),
        usage=_summed(score.usage for score in scores),
    )


def score_group(name: str, scores: Sequence[TaskScore], k: int) -> GroupScore:
    """Sum up the tasks of a group.

    The tasks are what is drawn again: episodes of one task are alike, so that drawing episodes would make intervals
    too narrow.
    """
    counted = [score for score in scores if score.episodes]
    rates = [score.rate for score in counted]
    enough = [score for score in counted if score.episodes >= k]
    passes = [pass_at_k(score.episodes, score.successes, k) for score in enough]
    attempts = sum(score.episodes // k for score in enough)  # sets of k episodes that share none
    return GroupScore(
        name=name,
        tasks=len(counted),
        pass_1=mean(rates),
        pass_1_interval=_mean_interval(rates, sum(score.episodes for score in counted)),
        k=k,
        pass_k=mean(passes),
        pass_k_interval=_mean_interval(passes, attempts) if len(passes) > 1 else None,
        pass_k_tasks=len(passes),
        total=total_score(scores),
    )


def score_groups(scores: Sequence[TaskScore], apps: Mapping[str, str], k: int) -> list[GroupScore]:
    """One score per application (`apps`: by task id), by name, and one for all tasks at the end."""
    names = sorted({apps[score.task_id] for score in scores})
    groups = [score_group(name, [s for s in scores if apps[s.task_id] == name], k) for name in names]
    return [*groups, score_group("all", scores, k)]


def mean(values: Sequence[float]) -> float:
    """The mean; NaN without values."""
    return sum(values) / len(values) if values else math.nan


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _summed(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(sorted(total.items()))


def refuse_lost(total: TaskScore, max_lost: int | None = None, why: str = "") -> None:
    """Look how many episodes were lost; without a limit, not all of them may be.

    Raises:
        LostEpisodes: more than `max_lost` were, or no episode has a score.
    """
    if total.lost and not total.episodes:
        raise LostEpisodes(f"nothing was scored: all {total.lost} episodes were lost{why and f': {why}'}")
    if max_lost is not None and total.lost > max_lost:
        raise LostEpisodes(f"{total.lost} episodes were lost, more than --max-lost {max_lost}{why and f': {why}'}")
