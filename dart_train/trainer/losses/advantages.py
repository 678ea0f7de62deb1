"""Advantages of the trajectories of a task group, by the names that `advantage` takes. Pure functions on arrays.

A group holds the trajectories that are compared with one another; each step of a trajectory is one sample and carries
its trajectory's reward. An advantage is one class in this module, or anywhere else: `advantage` takes a name of
`ADVANTAGES`, a name that an installed package announces in the group "dart_gui.advantages", or "module:Class". An
instance is called with a `GroupRewards` and returns one number per trajectory, or an array with one number per trained
step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dart_agent.episodes.trajectory import Step
from dart_gym.utils.plugins import Registry, has

ScaleRewards = Literal["group", "batch", "none"]
STEP_STD_EPSILON = 1e-6  # DART
TRAJECTORY_STD_EPSILON = 1e-4  # TRL


@dataclass(frozen=True, slots=True)
class GroupRewards:
    """The rewards of one group of n trajectories.

    Attributes:
        rewards: (n,) float64, one per trajectory.
        lengths: (n,) int64, trained steps of each trajectory, 0 allowed.
        steps: the trained steps of each trajectory, for advantages that look at what was seen and done; () where
            only numbers are known.
        batch_rewards: rewards of all trajectories of the lease, for `scale_rewards="batch"`; None if the group is the
            whole lease.
        batch_lengths: their trained steps; None as well.
        load_screen: returns a screenshot by its hash, (H, W, 3) uint8; None without screenshots.
    """

    rewards: NDArray[np.float64]
    lengths: NDArray[np.int64]
    steps: tuple[tuple[Step, ...], ...] = ()
    batch_rewards: NDArray[np.float64] | None = None
    batch_lengths: NDArray[np.int64] | None = None
    load_screen: Callable[[str], NDArray[np.uint8]] | None = None

    def population(self, scale: ScaleRewards, *, by_step: bool) -> NDArray[np.float64]:
        """The rewards whose deviation scales: the lease's or the group's, each once, or once for each trained step."""
        rewards, lengths = self.rewards, self.lengths
        if scale == "batch" and self.batch_rewards is not None and self.batch_lengths is not None:
            rewards, lengths = self.batch_rewards, self.batch_lengths
        return np.repeat(rewards, lengths) if by_step else rewards


Advantage = Callable[[GroupRewards], Sequence[ArrayLike] | NDArray[np.float64]]


@dataclass(frozen=True)
class StepAdvantage:
    """Baseline over all *steps* of the group: a long trajectory moves it more than a short one (DART).

    A_i = (R_i - mean R) / (std R + 1e-6), the unbiased deviation, of `scale_rewards`: "group", "batch" (TRL: that of
    all groups of the lease), or "none".
    """

    scale_rewards: ScaleRewards = "group"

    def __call__(self, group: GroupRewards) -> NDArray[np.float64]:
        """(n,) advantages; 0 in a group in which all rewards are equal."""
        return _centred(group, self.scale_rewards, STEP_STD_EPSILON, by_step=True)


@dataclass(frozen=True)
class TrajectoryAdvantage:
    """Baseline over the trajectories of the group, regardless of their lengths (TRL).

    A_i = (R_i - mean R) / (std R + 1e-4), the unbiased deviation, of `scale_rewards` as in `StepAdvantage`.
    """

    scale_rewards: ScaleRewards = "group"

    def __call__(self, group: GroupRewards) -> NDArray[np.float64]:
        """(n,) advantages; 0 in a group in which all rewards are equal."""
        return _centred(group, self.scale_rewards, TRAJECTORY_STD_EPSILON)


@dataclass(frozen=True)
class RLOOAdvantage:
    """The mean of the others as the baseline (arXiv 2402.14740, which does not scale: `scale_rewards="none"`).

    A_i = R_i - mean_{j != i} R_j = n / (n - 1) * (R_i - mean R), over trajectories; else scaled as
    `TrajectoryAdvantage`.
    """

    scale_rewards: ScaleRewards = "group"

    def __call__(self, group: GroupRewards) -> NDArray[np.float64]:
        """(n,) advantages; 0 in a group in which all rewards are equal."""
        count = len(group.rewards)
        factor = count / (count - 1) if count > 1 else 1.0
        return _centred(group, self.scale_rewards, TRAJECTORY_STD_EPSILON, factor)


def _centred(
    group: GroupRewards, scale: ScaleRewards, epsilon: float, factor: float = 1, *, by_step: bool = False
) -> NDArray[np.float64]:
    """(n,) rewards less their group's mean, in units of a deviation; 0 where there is no signal."""
    own = group.population("group", by_step=by_step)
    if group.rewards.size < 2 or own.size < 2 or np.ptp(group.rewards) == 0:
        return np.zeros_like(group.rewards)
    centred = (group.rewards - own.mean()) * factor
    if scale == "none":
        return centred
    return centred / (group.population(scale, by_step=by_step).std(ddof=1) + epsilon)


ADVANTAGES: Registry[Callable[..., Advantage]] = Registry(
    "advantage",
    "dart_gui.advantages",
    {
        "step": StepAdvantage,
        "trajectory": TrajectoryAdvantage,
        "rloo": RLOOAdvantage,
        "equal_screens": "dart_train.trainer.losses.equal_screens:EqualScreensAdvantage",
    },
    (has(__call__=("group",)),),
)


def shortest_path_rewards(rewards: NDArray[np.float64], steps: Sequence[int], strength: float) -> NDArray[np.float64]:
    """(n,) rewards of a group in which a success counts less, the longer it took than the shortest one.

    R'_i = R_i (1 - strength (T_i - T_min) / T_i) with T_min the fewest steps of a success of the group, after the
    shortest-path reward adjustment of MobileRL (arXiv 2509.18119). Failures stay as they are.
    """
    lengths = np.maximum(np.asarray(steps, dtype=np.float64), 1.0)
    succeeded = rewards > 0
    if not strength or not succeeded.any():
        return rewards
    shortest = lengths[succeeded].min()
    return np.where(succeeded, rewards * (1.0 - strength * (lengths - shortest) / lengths), rewards)


def rewards_to_go(rewards: Sequence[Sequence[float]]) -> list[NDArray[np.float64]]:
    """Return what rewards of single steps add to the advantages of a group, one array per trajectory.

    A_{i,t} += sum_{j >= t} (r_{i,j} - mean r), the mean over all steps of the group: GRPO's process supervision
    (DeepSeekMath, arXiv 2402.03300, 4.1.3) without its division by the deviation, so that weights count. All 0 where
    all steps have the same reward.
    """
    flat = [reward for own in rewards for reward in own]
    if not flat or max(flat) == min(flat):
        return [np.zeros(len(own)) for own in rewards]
    mean = float(np.mean(flat))
    return [np.cumsum((np.asarray(own, np.float64) - mean)[::-1])[::-1] for own in rewards]


def trajectory_weights(lengths: Sequence[int]) -> NDArray[np.float64]:
    """Return weights of the steps with which all trajectories count the same, regardless of their lengths.

    w_i = mean(lengths) / length_i: the weights of all steps sum to the number of steps, so that the scale of the loss
    stays. Without it a trajectory of 30 steps weighs ten times as much as one of 3 steps, with every baseline.
    """
    steps = np.asarray(lengths, dtype=np.float64)
    trained = steps > 0
    if not trained.any():
        return np.zeros_like(steps)
    return np.divide(steps[trained].mean(), steps, out=np.zeros_like(steps), where=trained)
