"""Alarms are raised after a window beyond their limit, cleared again, counted and shown."""

from __future__ import annotations

import math

import pytest

from dart_train.core.training_alarms import ALARMS, AlarmBoard, alarm_named, count_steps, raised_in

HEALTHY = {
    "gap/engine/mean": 1e-3, "sampling/sampling_logp_difference/mean": 0.1,
    "sampling/importance_sampling_ratio/mean": 0.98, "update/relative": 1e-4,
    "frac_no_signal": 0.3, "dropped/share": 0.0, "teacher/answered": 1.0,
}  # fmt: skip
WRONG = {
    "engine_gap": {"gap/engine/mean": 1.4},
    "policy_gap": {"sampling/sampling_logp_difference/mean": 6.0},
    "importance": {"sampling/importance_sampling_ratio/mean": 1e-3},
    "weights": {"update/relative": 0.0},
    "signal": {"frac_no_signal": 1.0},
    "teacher": {"teacher/answered": 0.1},
    "dropped": {"dropped/share": 0.8},
    "collapse": {"collapse": 1.0},
}


def test_every_alarm_has_a_wrong_number_here():
    assert set(WRONG) == {alarm.name for alarm in ALARMS}


@pytest.mark.parametrize("name", WRONG)
def test_an_alarm_is_raised_after_a_window_and_cleared_again(name):
    board = AlarmBoard(3)
    looks = [board.look(HEALTHY | WRONG[name]) for _ in range(3)]
    assert looks == [([], []), ([], []), ([name], [])]
    assert board.look(HEALTHY | WRONG[name]) == ([], [])  # said once
    assert alarm_named(name).advice in board.raised[name]
    cleared = [board.look(HEALTHY)[1] for _ in range(3)]
    assert [name] in cleared and not board.raised


def test_healthy_numbers_raise_nothing_however_long():
    board = AlarmBoard(2)
    assert all(board.look(HEALTHY) == ([], []) for _ in range(50))


def test_missing_numbers_raise_nothing_and_nan_does():
    board = AlarmBoard(1)
    assert board.look({}) == ([], [])
    assert board.look({"gap/engine/mean": math.nan}) == (["engine_gap"], [])


def test_no_window_means_no_alarms():
    assert AlarmBoard(0).look(WRONG["signal"]) == ([], [])


def test_a_limit_can_be_narrower():
    assert AlarmBoard(1, {"engine_gap": 1e-2}).look({"gap/engine/mean": 0.02}) == (["engine_gap"], [])
    assert AlarmBoard(1).look({"gap/engine/mean": 0.02}) == ([], [])


def test_steps_are_counted_from_the_metrics():
    rows = [{"alarm/signal": 1.0}, {}, {"alarm/signal": 1.0, "alarm/weights": 1.0}]
    assert count_steps(rows) == {"signal": 2, "weights": 1}
    assert [alarm.name for alarm in raised_in(rows[2])] == ["weights", "signal"]
