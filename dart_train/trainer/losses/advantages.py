"""Advantages of the trajectories of a task group, by the names that `advantage` takes. Pure functions on arrays.

A group holds the trajectories that are compared with one another; each step of a trajectory is one sample and carries
its trajectory's reward. An advantage is one class in this module, or anywhere else: `advantage` takes a name of
`ADVANTAGES`, a name that an installed package announces in the group "dart_gui.advantages", or "module:Class". An
object of it is called with a `GroupRewards` and returns one number per trajectory, or an array of one per trained step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dart_agent.episodes.trajectory import Step
from dart_gym.utils.plugins import Registry, has

ScaleRewards = Literal["group", "none"]
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
    """

    rewards: NDArray[np.float64]
    lengths: NDArray[np.int64]
    steps: tuple[tuple[Step, ...], ...] = ()


Advantage = Callable[[GroupRewards], Sequence[ArrayLike] | NDArray[np.float64]]


@dataclass(frozen=True)
class StepAdvantage:
    """Baseline over all *steps* of the group: a long trajectory moves it more than a short one (DART).

    A_i = (R_i - mean R) / (std R + 1e-6), the unbiased deviation

    Attributes:
        scale_rewards: "group" divides by the group's deviation, "none" does not.
    """

    scale_rewards: ScaleRewards = "group"

    def __call__(self, group: GroupRewards) -> NDArray[np.float64]:
        """(n,) advantages; 0 in a group in which all rewards are equal."""
        return _centred(group.rewards, np.repeat(group.rewards, group.lengths), self.scale_rewards, STEP_STD_EPSILON)


@dataclass(frozen=True)
class TrajectoryAdvantage:
    """Baseline over the trajectories of the group, whatever their lengths (TRL).

    A_i = (R_i - mean R) / (std R + 1e-4), the unbiased deviation

    Attributes:
        scale_rewards: "group" divides by the group's deviation, "none" does not.
    """

    scale_rewards: ScaleRewards = "group"

    def __call__(self, group: GroupRewards) -> NDArray[np.float64]:
        """(n,) advantages; 0 in a group in which all rewards are equal."""
        return _centred(group.rewards, group.rewards, self.scale_rewards, TRAJECTORY_STD_EPSILON)


@dataclass(frozen=True)
class RLOOAdvantage:
    """The mean of the others as the baseline (arXiv 2402.14740, which does not scale: `scale_rewards="none"`).

    A_i = R_i - mean_{j != i} R_j = n / (n - 1) * (R_i - mean R), over trajectories

    Attributes:
        scale_rewards: "group" divides by the group's deviation plus 1e-4, "none" does not.
    """

    scale_rewards: ScaleRewards = "group"

    def __call__(self, group: GroupRewards) -> NDArray[np.float64]:
        """(n,) advantages; 0 in a group in which all rewards are equal."""
        count = len(group.rewards)
        factor = count / (count - 1) if count > 1 else 1.0
        return _centred(group.rewards, group.rewards, self.scale_rewards, TRAJECTORY_STD_EPSILON, factor)


def _centred(
    rewards: NDArray[np.float64],
    population: NDArray[np.float64],
    scale: ScaleRewards,
    epsilon: float,
    factor: float = 1,
) -> NDArray[np.float64]:
    """(n,) rewards less the mean of a population, in units of its deviation; 0 where there is no signal."""
    if rewards.size < 2 or population.size < 2 or np.ptp(rewards) == 0:
        return np.zeros_like(rewards)
    centred = (rewards - population.mean()) * factor
    return centred if scale == "none" else centred / (population.std(ddof=1) + epsilon)


ADVANTAGES: Registry[Callable[..., Advantage]] = Registry(
    "advantage",
    "dart_gui.advantages",
    {"step": StepAdvantage, "trajectory": TrajectoryAdvantage, "rloo": RLOOAdvantage},
    (has(__call__=("group",)),),
)


def trajectory_weights(lengths: Sequence[int]) -> NDArray[np.float64]:
    """Weight of each step of each trajectory that makes all trajectories count the same, whatever their lengths.

    w_i = mean(lengths) / length_i: the weights of all steps sum to the number of steps, so that the scale of the loss
    stays. Without it a trajectory of 30 steps has ten times the say of one of 3, whatever the baseline.

    Args:
        lengths: trained steps of each trajectory of the optimizer batch, 0 allowed.

    Returns:
        (number of trajectories,) float64; 0 for a trajectory without steps.
    """
    steps = np.asarray(lengths, dtype=np.float64)
    trained = steps > 0
    if not trained.any():
        return np.zeros_like(steps)
    return np.divide(steps[trained].mean(), steps, out=np.zeros_like(steps), where=trained)
