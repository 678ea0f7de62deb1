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
AdvantageLevel = Literal["step", "trajectory", "rloo"]
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
    rloo:               A_i = R_i - mean_{j != i} R_j = n / (n - 1) * (R_i - mean R), over trajectories; scaled as
                        "trajectory" is (arXiv 2402.14740 does not scale: scale_rewards="none")
    scale_rewards="none" leaves out the division. The deviation is the unbiased one. A group in which all rewards
    are equal (or there is one trajectory) has advantages of 0: it holds no signal.

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
    if values.size < 2 or population.size < 2 or np.ptp(values) == 0:
        return np.zeros_like(values)
    centred = values - population.mean()
    if level == "rloo":
        centred *= values.size / (values.size - 1)
    if scale_rewards == "none":
        return centred
    epsilon = STEP_STD_EPSILON if level == "step" else TRAJECTORY_STD_EPSILON
    return centred / (population.std(ddof=1) + epsilon)


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
