"""TRL's trainer and ours do the same optimizer step; ours does less work for it."""

from __future__ import annotations

import pytest

from dart_lab.train import trl_bench

pytestmark = [pytest.mark.scale, pytest.mark.train]


def test_the_same_step_takes_less_of_the_processor(monkeypatch):
    monkeypatch.setattr(trl_bench, "ROLLOUTS", 4)  # half of the completions: a test, not a measurement
    report = trl_bench.measure(1, lambda text: None)  # gradient norms that differ would raise
    assert report.keys["vs_trl_separate"] > 1.2
    assert report.keys["vs_trl_merged"] > max(2.0, report.keys["vs_trl_separate"])
    assert all(value > 0 for value in report.keys.values())
