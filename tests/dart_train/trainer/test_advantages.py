from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_train.trainer.advantages import group_advantages


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


@pytest.mark.parametrize("level", ["step", "trajectory"])
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
