from __future__ import annotations

import pytest
from data_builders import make_step, make_trajectory
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dart_gym.outcomes import TerminalState
from dart_train.data.curation import (
    Census,
    CurationConfig,
    PoolInjection,
    explain,
    judge_group,
    length_cap,
    oldest_allowed,
    pool_injection,
    rollouts_for,
    untrainable,
)
from dart_train.data.schema import GroupState, Reason


@pytest.mark.parametrize(
    ("rate", "number"),
    [(None, 8), (0.0, 8), (0.6, 8), (0.65, 6), (0.7, 5), (0.75, 5), (0.8, 4), (0.875, 3), (0.9, 3), (1.0, 2)],
)
def test_rollouts_follow_the_table(rate, number):
    assert rollouts_for(rate, 8) == number


@given(st.floats(0, 1), st.floats(0, 1), st.integers(2, 32))
def test_more_success_never_gets_more_rollouts(first, second, maximum):
    low, high = sorted((first, second))
    assert 2 <= rollouts_for(high, maximum) <= rollouts_for(low, maximum) <= maximum


@pytest.mark.parametrize(("longest", "cap"), [(None, 30), (1, 2), (5, 6), (29, 30), (40, 30)])
def test_length_cap_follows_the_longest_success(longest, cap):
    assert length_cap(longest, 30, margin=1, minimum=2) == cap


def test_pool_joins_only_a_group_that_failed_as_a_whole():
    pool = [(5.0, "old"), (9.0, "new"), (7.0, "middle")]
    assert pool_injection([0.0, 0.0, 0.0], [3.0, 1.0, 2.0], pool) == PoolInjection(replace=1, trajectory_id="new")
    assert pool_injection([0.0, 0.1, 0.0], [3.0, 1.0, 2.0], pool) is None
    assert pool_injection([0.0, 0.0], [1.0, 2.0], []) is None
    assert pool_injection([], [], pool) is None


@pytest.mark.parametrize(
    ("newest", "staleness", "oldest"), [(None, 2, None), (5, None, None), (5, 0, 5), (5, 2, 3), (1, 4, -3)]
)
def test_staleness_window(newest, staleness, oldest):
    assert oldest_allowed(newest, staleness) == oldest


def test_groups_are_judged_when_complete():
    assert judge_group(7, 8, 0, 1) == (GroupState.OPEN, None)
    assert judge_group(7, 8, 1, 1) == (GroupState.OPEN, None)
    assert judge_group(8, 8, 0, 1) == (GroupState.READY, None)
    assert judge_group(8, 8, 1, 1) == (GroupState.REJECTED, Reason.NO_SIGNAL)
    assert judge_group(8, 8, 1, 1, drop_no_signal=False) == (GroupState.READY, None)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, ""),
        ({"reward": 0.0}, ""),
        ({"terminal": TerminalState.PARSE_ERROR, "reward": 0.0}, ""),
        ({"terminal": TerminalState.STEP_LIMIT, "reward": 0.0}, ""),
        ({"terminal": TerminalState.ENV_ERROR, "reward": None}, "ended in env_error"),
        ({"terminal": TerminalState.MODEL_ERROR, "reward": 0.0}, "ended in model_error"),
        ({"reward": None}, "has no reward"),
        ({"steps": ()}, "has no steps"),
    ],
)
def test_errors_are_never_trained_on(fields, why):
    assert untrainable(make_trajectory("t", **fields)) == why


def test_explanation_names_every_obstacle():
    census = Census(stale=640, no_signal=172, unfinished=12, oldest_allowed=7)
    assert explain(census) == (
        "0 of 824 trajectories eligible: 640 older than version 7, 172 in groups with no variance, "
        "12 in unfinished groups"
    )
    assert explain(Census(eligible=16, eligible_groups=2)) == "16 of 16 trajectories eligible in 2 groups"
    assert "is the rollout service running" in explain(Census())


def test_switches_are_off_by_default_and_unknown_ones_are_errors():
    config = CurationConfig()
    assert not (config.dynamic_rollouts or config.dynamic_length or config.experience_pool)
    with pytest.raises(ValidationError):
        CurationConfig(max_stalenes=3)


def test_trajectory_version_is_that_of_its_oldest_step():
    assert make_trajectory("t", steps=(make_step(5), make_step(3), make_step(6))).oldest_version == 3
