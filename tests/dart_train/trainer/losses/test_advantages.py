from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_train.trainer.losses.advantages import ADVANTAGES, GroupRewards, trajectory_weights


def group_advantages(rewards, lengths, *, level: str = "step", scale_rewards: str = "group") -> np.ndarray:
    group = GroupRewards(np.array(rewards, np.float64), np.array(lengths, np.int64))
    return ADVANTAGES.get(level)(scale_rewards=scale_rewards)(group)


def test_step_level_as_in_dart():
    """Rewards 1 and 0 over 2 and 6 steps: mean 0.25, unbiased deviation 0.46291."""
    assert group_advantages([1, 0], [2, 6]).tolist() == pytest.approx([1.6202, -0.5401], abs=1e-4)


def test_trajectory_level_does_not_look_at_lengths():
    short = group_advantages([1, 0, 0, 1], [1, 1, 1, 1], level="trajectory")
    long = group_advantages([1, 0, 0, 1], [9, 1, 5, 2], level="trajectory")
    assert short.tolist() == long.tolist() == pytest.approx([0.8659, -0.8659, -0.8659, 0.8659], abs=1e-3)


def test_without_scaling_the_mean_is_subtracted_only():
    assert group_advantages([1, 0], [2, 6], scale_rewards="none").tolist() == [0.75, -0.25]
    assert group_advantages([1, 0], [2, 6], scale_rewards="none", level="trajectory").tolist() == [0.5, -0.5]


@pytest.mark.parametrize("level", ["step", "trajectory", "rloo"])
@pytest.mark.parametrize("rewards", [[1.0, 1.0, 1.0], [0.0, 0.0], [0.7]])
def test_no_signal_gives_no_advantage(level, rewards):
    advantages = group_advantages(rewards, [1] * len(rewards), level=level)
    assert np.abs(advantages).max() < 1e-9


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 30)), min_size=2, max_size=12))
def test_advantages_are_centred_over_what_they_are_taken_over(items):
    rewards, lengths = zip(*items, strict=True)
    steps = group_advantages(rewards, lengths)
    assert np.isfinite(steps).all()
    assert np.dot(steps, lengths) == pytest.approx(0, abs=1e-6 * sum(lengths))
    assert group_advantages(rewards, lengths, level="trajectory").sum() == pytest.approx(0, abs=1e-6)


def test_rloo_compares_with_the_others():
    advantages = group_advantages([1, 0, 0, 0.5], [3, 1, 9, 2], scale_rewards="none", level="rloo")
    assert advantages.tolist() == pytest.approx([1 - 0.5 / 3, -0.5, -0.5, 0.5 - 1 / 3])


@pytest.mark.parametrize("level", ["step", "trajectory", "rloo"])
def test_a_group_of_one_has_no_signal_however_long_it_is(level):
    assert group_advantages([1.0], [7], level=level).tolist() == [0.0]


def test_long_trajectories_count_as_much_as_short_ones():
    weights = trajectory_weights([2, 6, 0, 4])
    assert weights.tolist() == [2.0, pytest.approx(2 / 3), 0.0, 1.0]
    assert (weights * [2, 6, 0, 4]).tolist() == pytest.approx([4.0, 4.0, 0.0, 4.0])
    assert trajectory_weights([0, 0]).tolist() == [0.0, 0.0]
