"""A resumed trainer learns at the rate that it is given now, not at the one that its state was saved with."""

from __future__ import annotations

import pytest

from dart_train.core.metrics_log import MetricsLog, read_metrics


@pytest.mark.thorough
@pytest.mark.train
def test_a_lower_learning_rate_counts_after_a_resume(model_dir, make_config, data, record_group, tmp_path):
    from dart_train.trainer import DartGRPOTrainer

    for number in range(6):
        record_group(f"g{number}", (0.0, 1.0, 0.0, 1.0))

    def life(**values):
        given = {"groups_per_step": 1, "save_steps": 1, "lr_scheduler_type": "constant", "weight_decay": 0.0} | values
        trainer = DartGRPOTrainer(model_dir, make_config(**given), data, metrics=MetricsLog(tmp_path / "metrics.jsonl"))
        trainer.run()
        return trainer

    life(learning_rate=1e-3, max_steps=2)
    resumed = life(learning_rate=1e-6, max_steps=4, weight_decay=0.25)
    rows = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-3, 1e-3, 1e-6, 1e-6])
    assert rows[3]["update/relative"] < 1e-2 * rows[1]["update/relative"]
    assert {group["lr"] for group in resumed.optimizer.param_groups} == {1e-6}
    assert max(group["weight_decay"] for group in resumed.optimizer.param_groups) == 0.25
