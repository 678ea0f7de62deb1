"""Killed at any moment and started again, a trainer does what an uninterrupted one does: the same losses, the same
weights, each group trained once, and rows of checkpoints that say what is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training_lives import MOMENTS, copy_run, live, open_run

from dart_train.core.metrics_log import read_metrics
from dart_train.trainer.grpo_trainer import load_model
from dart_train.trainer.weights.checkpoint import first_non_finite

pytestmark = [pytest.mark.train, pytest.mark.process]


def losses(root: Path) -> dict[int, float]:
    """By step; of a step that was made again the newer."""
    return {row["step"]: row["loss"] for row in read_metrics(root / "metrics.jsonl")}


def final_weights(root: Path) -> torch.Tensor:
    with open_run(root) as data:
        model = load_model(data.newest_checkpoint().path)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, record_into, model_dir) -> Path:
    """A run with groups of unlike rewards, so that every lease has a loss of its own."""
    root = tmp_path_factory.mktemp("recorded")
    with open_run(root) as data:
        for number in range(5):
            rewards = tuple(0.75 * ((number + place) % 4 < 2) + 0.02 * number * place for place in range(4))
            record_into(data, f"g{number}", rewards, -5.0 - number / 2)
    return root


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, recorded, model_dir) -> tuple[dict[int, float], torch.Tensor]:
    root = copy_run(recorded, tmp_path_factory.mktemp("whole") / "run")
    assert live(root, model_dir) == [0]
    found = losses(root)
    assert list(found) == [1, 2, 3, 4] and len({round(value, 6) for value in found.values()}) == 4
    return found, final_weights(root)


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_it_goes_on_as_if_it_had_not_been(moment, recorded, uninterrupted, model_dir, tmp_path):
    root = copy_run(recorded, tmp_path / "run")
    at = {"save": 3, "saved": 3, "beside": 1}.get(moment, 2)  # steps are saved after the second and the fourth
    assert live(root, model_dir, moment, at) == [-9]
    assert live(root, model_dir) == [0]
    expected, weights = uninterrupted
    assert losses(root) == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(final_weights(root), weights, atol=1e-6, rtol=1e-5)
    with open_run(root) as data:
        assert {state: number for state, number in data.counts().items() if number} == {"trained": 16, "recorded": 4}
        for row in data.checkpoints():
            there = Path(row.path).is_dir()
            assert str(row.status) in ("COMPLETED", "FAILED", "DEPRECATED")
            assert there == (row.status == "COMPLETED")
            assert not there or first_non_finite(load_model(row.path)) is None
    assert not list(root.glob("*/.tmp-*")) and not list(root.glob("*/damaged-*"))
