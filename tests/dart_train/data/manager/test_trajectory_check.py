"""What a trajectory must be before it is recorded, by a table; the database is never asked."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_gym.core.outcomes import TerminalState
from dart_train.core.train_errors import InvalidTrajectoryError
from dart_train.data.manager.trajectory_check import checked_trajectory

STEP = Step(prompt_ids=(1,), response_ids=(2,), logprobs=(-0.5,), version=(1, 1))
GOOD = Trajectory(
    "fake/button", 7, trajectory_id="t", group_key="g", terminal=TerminalState.DONE, score=1.0, steps=(STEP,)
)


@pytest.mark.parametrize(
    "score",
    [math.inf, -math.inf, math.nan, -1, -1e-9, 1.5, 100, True, np.bool_(True), "1", b"1", [1], 1j, Decimal(1),
     np.float32("nan"), np.array([1.0])],
    ids=repr,
)  # fmt: skip
def test_a_score_that_is_no_reward_is_refused_by_name(score):
    with pytest.raises(InvalidTrajectoryError, match="score of trajectory t"):
        checked_trajectory(replace(GOOD, score=score))


@pytest.mark.parametrize("score", [0, 1, 0.5, np.float32(0.5), np.float64(1), np.int64(1), np.float16(0)], ids=repr)
def test_a_number_of_any_kind_becomes_a_float(score):
    checked = checked_trajectory(replace(GOOD, score=score))
    assert type(checked.score) is float and checked.score == float(score)


def test_a_lost_episode_has_no_score():
    assert checked_trajectory(replace(GOOD, score=None)).score is None


@pytest.mark.parametrize(
    "changed",
    [
        {"response_ids": (-1,)}, {"response_ids": (2**63,)}, {"prompt_ids": (1.5,)}, {"logprobs": (-9999.0,)},
        {"logprobs": (math.nan,)}, {"logprobs": ()}, {"version": (2, 1)}, {"entropy": math.inf},
        {"timings": {"step": math.nan}}, {"timings": {"step": "1"}},
    ],
    ids=str,
)  # fmt: skip
def test_a_step_with_a_wrong_number_is_refused_by_its_place(changed):
    with pytest.raises(InvalidTrajectoryError, match="step 1"):
        checked_trajectory(replace(GOOD, steps=(STEP, replace(STEP, **changed))))


def test_seeds_and_times_are_numbers():
    for changed in ({"seed": 2**64}, {"seed": 1.0}, {"ended_at": math.inf}, {"usage": {"usd": math.nan}}):
        with pytest.raises(InvalidTrajectoryError):
            checked_trajectory(replace(GOOD, **changed))
