"""Two policies on the same tasks: the difference, its interval and a paired test. Pure functions of values.

The test draws signs: if the policies were alike, each pair's difference might as well have the other sign. With up to
14 pairs that differ all signs are tried (the p-value is exact), above that 100,000 draws of a fixed seed.

What is a pair: a task (the difference of the two success rates), where at least `MIN_TASKS` tasks are common, because
episodes of one task are alike; else an episode (same task, same seed), and the answer is about these tasks only.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dart_agent.episodes.trajectory import Trajectory
from dart_agent.evaluation.scores import bootstrap_interval, mean
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils.rates import wilson_interval

MIN_TASKS = 6
"""Fewer pairs could never give a p-value below 0.05: the smallest is 2 / 2^n."""
ALPHA = 0.05
_EXACT_PAIRS = 14
_DRAWS = 100_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """Difference between two policies, A and B.

    Attributes:
        tasks: tasks with episodes of both that count.
        left_out: episodes that one of them has and the other has not, or lost.
        difference: rate_b - rate_a.
        interval: of the difference, bootstrap over the pairs, 95 %.
        p_value: of the paired sign test of the means, two-sided.
    """

    unit: Literal["task", "episode"]
    pairs: int
    tasks: int
    left_out: int
    rate_a: float
    rate_b: float
    difference: float
    interval: tuple[float, float]
    p_value: float
    better_b: int
    better_a: int

    @property
    def verdict(self) -> Literal["no difference", "A is better", "B is better"]:
        """Return what may be said at the 5 % level."""
        if self.p_value >= ALPHA:
            return "no difference"
        return "B is better" if self.difference > 0 else "A is better"


def compare(a: Sequence[Trajectory], b: Sequence[Trajectory]) -> Comparison:
    """Compare two policies' episodes of equal tasks and seeds.

    Raises:
        ConfigurationError: if they have no tasks and seeds in common, or a task has changed.
    """
    left, right = ({(e.task_id, e.seed): e for e in episodes} for episodes in (a, b))
    for key in left.keys() & right.keys():
        one, other = left[key].task_hash, right[key].task_hash
        if one and other and one != other:
            raise ConfigurationError(
                f"{key[0]} was not the same task in both evaluations ({one} and {other}): play one of them again"
            )
    common = sorted(key for key in left.keys() & right.keys() if not left[key].lost_by and not right[key].lost_by)
    if not common:
        raise ConfigurationError("the two evaluations have no episode in common (same task, same seed, not lost)")
    by_task: dict[str, list[tuple[float, float]]] = {}
    for key in common:
        by_task.setdefault(key[0], []).append((float(left[key].success), float(right[key].success)))
    unit: Literal["task", "episode"] = "task" if len(by_task) >= MIN_TASKS else "episode"
    if unit == "task":
        pairs = [(mean([one for one, _ in of]), mean([other for _, other in of])) for of in by_task.values()]
    else:
        pairs = [pair for of in by_task.values() for pair in of]
    differences = [other - one for one, other in pairs]
    return Comparison(
        unit=unit,
        pairs=len(pairs),
        tasks=len(by_task),
        left_out=len(left.keys() | right.keys()) - len(common),
        rate_a=mean([one for one, _ in pairs]),
        rate_b=mean([other for _, other in pairs]),
        difference=mean(differences),
        interval=_interval(pairs, differences),
        p_value=sign_test(differences),
        better_b=sum(value > 0 for value in differences),
        better_a=sum(value < 0 for value in differences),
    )


def _interval(pairs: Sequence[tuple[float, float]], differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean difference of pairs, by the bootstrap.

    Equal differences have a bootstrap interval without width: 4 pairs that all differ by 1 would prove it. They get the
    interval of two independent rates, which is wider than an interval of pairs.

    Source: Newcombe, "Interval estimation for the difference between independent proportions" (1998), method 10.
    """
    low, high = bootstrap_interval(differences)
    if low < high:
        return low, high
    rate_a, rate_b = mean([one for one, _ in pairs]), mean([other for _, other in pairs])
    low_a, high_a = wilson_interval(round(rate_a * len(pairs)), len(pairs))
    low_b, high_b = wilson_interval(round(rate_b * len(pairs)), len(pairs))
    difference = rate_b - rate_a
    low = difference - math.hypot(rate_b - low_b, high_a - rate_a)
    high = difference + math.hypot(high_b - rate_b, rate_a - low_a)
    return max(-1.0, low), min(1.0, high)


def sign_test(differences: Sequence[float]) -> float:
    """The two-sided p-value of a mean difference under random signs (Fisher's paired randomisation test).

    Pairs without a difference say nothing and are left out; without any other the p-value is 1.
    """
    values = np.array([value for value in sorted(differences) if value != 0.0])
    if len(values) == 0:
        return 1.0
    observed = abs(values.sum()) - 1e-9  # sums of equal numbers in another order are equal
    if len(values) <= _EXACT_PAIRS:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(values))))
        return float(np.mean(np.abs(signs @ values) >= observed))
    rng = np.random.default_rng(0)
    extreme = 0
    for _ in range(10):
        signs = rng.choice((-1.0, 1.0), size=(_DRAWS // 10, len(values)))
        extreme += int(np.count_nonzero(np.abs(signs @ values) >= observed))
    return (extreme + 1) / (_DRAWS + 1)
