from __future__ import annotations

import pytest
from data_builders import make_step, make_trajectory
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dart_gym.core.outcomes import TerminalState
from dart_train.core.data_states import GroupState, Reason
from dart_train.data.curation.rules import (
    CurationConfig,
    Plan,
    judge_group,
    length_cap,
    oldest_allowed,
    plan,
    rollouts_for,
    untrainable,
)
from dart_train.data.curation.task_sampling import task_shares


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


@pytest.mark.parametrize(
    ("cut_off_at", "cap"),
    [(None, 6), (6, 9), (9, 14), (14, 21), (21, 30), (3, 6), (1, 6)],
)
def test_a_cap_that_cuts_off_every_attempt_grows(cut_off_at, cap):
    assert length_cap(5, 30, margin=1, minimum=2, cut_off_at=cut_off_at, growth=1.5) == cap
    assert length_cap(5, 30, margin=1, minimum=2, cut_off_at=cut_off_at, growth=1.0) == 6  # switched off
    assert length_cap(None, 30, cut_off_at=cut_off_at) == 30  # before the first success there is no cap


@given(st.integers(1, 50), st.integers(1, 60), st.floats(1.01, 3))
def test_growth_reaches_any_length_in_the_end_and_never_passes_the_limit(longest, needed, growth):
    cap, limit = length_cap(longest, 60, growth=growth), 60
    for _ in range(60):
        if cap >= needed:
            break
        cap = length_cap(longest, limit, cut_off_at=cap, growth=growth)
    assert needed <= cap <= limit


def test_plans_follow_the_switches():
    known = {"success_rate": 0.9, "longest_success": 5}
    assert plan(CurationConfig(), 30, **known) == Plan(8, 30)
    both = CurationConfig(dynamic_rollouts=True, dynamic_length=True)
    assert plan(both, 30, **known, share=0.5) == Plan(3, 6, 0.5)
    assert plan(both, 30, **known, cut_off_at=6) == Plan(3, 9)
    assert plan(both, None, **known) == Plan(3, None)  # without a general limit, length is the task's own


def test_plain_grpo_has_every_switch_off():
    config = CurationConfig.plain(4)
    assert not config.settles_groups
    assert (config.drop_no_signal, config.max_staleness, config.batches_ahead) == (False, None, None)
    assert judge_group(4, 4, 0.0, 0.0, drop_no_signal=config.drop_no_signal) == (GroupState.READY, None)
    assert plan(config, 30, success_rate=1.0, longest_success=2) == Plan(4, 30)
    assert task_shares(config, {"a": 0.0, "b": 1.0}) == {"a": 1.0, "b": 1.0}


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


def test_switches_are_off_by_default_and_unknown_ones_are_errors():
    config = CurationConfig()
    assert not (config.dynamic_rollouts or config.dynamic_length or config.experience_pool)
    assert config.select_rollouts is None and config.drop_above is None and not config.replay_leftovers
    assert config.task_sampling == "uniform"
    with pytest.raises(ValidationError):
        CurationConfig(max_stalenes=3)


def test_trajectory_version_is_that_of_its_oldest_step():
    assert make_trajectory("t", steps=(make_step(5), make_step(3), make_step(6))).oldest_version == 3
