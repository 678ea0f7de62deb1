"""The trainer on recorded groups, with the real data manager and the tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from dart_train.metrics import MetricsLog, read_metrics
from dart_train.trainer.trainer import DartGRPOTrainer

pytestmark = pytest.mark.train


def test_trains_publishes_and_commits(data, record_group, make_config, model_dir, tmp_path: Path):
    for key in "abcd":
        record_group(key)
    log = MetricsLog(tmp_path / "metrics" / "trainer.jsonl")
    trainer = DartGRPOTrainer(model_dir, make_config(), data, metrics=log)
    trainer.run()
    assert data.counts()["trained"] == 16
    assert [row.version for row in data.checkpoints()] == [2, 1, 0]
    rows = list(read_metrics(log.path))
    assert [row["step"] for row in rows] == [1, 2]
    print(rows[0])
