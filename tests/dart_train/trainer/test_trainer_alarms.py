"""Alarms in a trainer that runs: an engine that reports wrong log-probabilities, and weights that do not change."""

from __future__ import annotations

import pytest

from dart_train.core.metrics_log import MetricsLog, read_metrics
from dart_train.trainer.collapse_guard import AlarmStop

MIXED = (0.0, 1.0, 0.0, 1.0)
TRUE_LOGPROB = -6.3
"""Of a token under the untrained model, which prefers none of some five hundred."""


@pytest.fixture
def train(model_dir, make_config, data, record_group, tmp_path):
    from dart_train.trainer import DartGRPOTrainer

    def run(*, rewards=MIXED, logprob=TRUE_LOGPROB, **values):
        for number in range(4):
            record_group(f"g{number}", rewards, logprob)
        given = {"groups_per_step": 1, "alarm_window": 2, "max_steps": 4, "learning_rate": 1e-6} | values
        config = make_config(**given)
        trainer = DartGRPOTrainer(model_dir, config, data, metrics=MetricsLog(tmp_path / "metrics.jsonl"))
        trainer.run()
        return list(read_metrics(tmp_path / "metrics.jsonl"))

    return run


@pytest.mark.train
def test_an_engine_that_reports_wrong_logprobs_ends_the_run_if_told_to(train, tmp_path):
    with pytest.raises(AlarmStop, match=r"step 2: .*dart-train parity"):
        train(logprob=-0.001, stop_on=["policy_gap"])
    assert list(read_metrics(tmp_path / "metrics.jsonl"))[-1]["alarm/policy_gap"] == 1.0


@pytest.mark.train
def test_without_stop_on_it_is_said_and_training_goes_on(train, caplog):
    rows = train(logprob=-0.001)
    assert len(rows) == 4 and "alarm/policy_gap" not in rows[0] and rows[-1]["alarm/policy_gap"] == 1.0
    assert caplog.text.count("alarm policy_gap: ") == 1


@pytest.mark.train
def test_the_same_weights_with_other_numbers_are_the_engines_fault(train):
    rows = train(logprob=-0.001, alarm_window=1)
    assert rows[0]["alarm/engine_gap"] == 1.0  # later rollouts are of an older version than the trainer's


@pytest.mark.train
def test_the_size_of_updates_is_measured(train):
    rows = train(learning_rate=1e-3)
    assert all(1e-5 < row["update/relative"] < 1.0 for row in rows)
    assert all("alarm/weights" not in row for row in rows)


@pytest.mark.train
def test_weights_that_hardly_change_raise_an_alarm(train):
    assert train(learning_rate=1e-14)[-1]["alarm/weights"] == 1.0
