"""Advantages of the steps of a task group. Pure functions on arrays.

A group holds the trajectories that are compared with one another; each step of a trajectory is one sample and
carries its trajectory's reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

ScaleRewards = Literal["group", "none"]
AdvantageLevel = Literal["step", "trajectory"]
STEP_STD_EPSILON = 1e-6  # DART
TRAJECTORY_STD_EPSILON = 1e-4  # TRL


def group_advantages(
    rewards: Sequence[float],
    lengths: Sequence[int],
    *,
    scale_rewards: ScaleRewards = "group",
    level: AdvantageLevel = "step",
) -> NDArray[np.float64]:
    """Advantage of each trajectory of one group; all its steps share it.

    step (DART):        A_i = (R_i - mean_D R) / (std_D R + 1e-6), D all *steps* of the group, so that a long
                        trajectory moves the baseline more than a short one
    trajectory (TRL):   the same over trajectories, with 1e-4
    scale_rewards="none" leaves out the division. The deviation is the unbiased one. A group in which all rewards
    are equal (or there is one sample) has advantages of 0: it holds no signal.

    Args:
        rewards: one per trajectory.
        lengths: trained steps of each trajectory, 0 allowed.
        scale_rewards: "group" or "none".
        level: what the mean and the deviation are taken over.

    Returns:
        (number of trajectories,) float64.
    """
    values = np.asarray(rewards, dtype=np.float64)
    weights = np.asarray(lengths, dtype=np.int64)
    population = np.repeat(values, weights) if level == "step" else values
    if population.size < 2:
        return np.zeros_like(values)
    centred = values - population.mean()
    if scale_rewards == "none":
        return centred
    epsilon = STEP_STD_EPSILON if level == "step" else TRAJECTORY_STD_EPSILON
    return centred / (population.std(ddof=1) + epsilon)
