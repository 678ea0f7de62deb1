"""Supervised training: its limits, its learning rate, and what it leaves behind."""

from __future__ import annotations

import math
import tempfile

import pytest
import torch

from dart_agent.models.model_tokens import ModelTokens
from dart_train.core.metrics_log import MetricsLog, read_metrics
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.grpo_trainer import load_model
from dart_train.trainer.supervised import SupervisedConfig, TrainedAs, learning_rate_share, train_supervised
from dart_train.trainer.weights.adapters import LoraSettings

pytestmark = pytest.mark.train

SMALL = {"batch_size": 4, "learning_rate": 5e-3, "warmup_steps": 3, "threads": 1}


def test_learns_its_demonstrations_and_writes_a_model(model_dir, samples, screens, tmp_path):
    seen, log = [], MetricsLog(tmp_path / "warmup.jsonl")
    target = tmp_path / "warm"
    config = SupervisedConfig(max_steps=40, **SMALL)
    load = screens.__getitem__
    end = train_supervised(model_dir, samples, load, target, config, on_progress=seen.append, metrics=log)
    log.close()
    assert end.steps == 40 and end.share == 1.0 and end == seen[-1]
    assert seen[0].loss == pytest.approx(math.log(937 - 7), abs=0.1)
    assert end.loss < 0.7 * seen[0].loss
    assert [row["step"] for row in read_metrics(log.path)] == [20, 40]
    assert ModelTokens.load(target) == ModelTokens.load(model_dir)
    assert not torch.equal(load_model(target).lm_head.weight, load_model(model_dir).lm_head.weight)
    assert {path.name for path in tmp_path.iterdir()} == {"warm", "warmup.jsonl"}


def test_equal_seeds_give_equal_weights(model_dir, samples, screens, tmp_path):
    config = SupervisedConfig(max_steps=3, **SMALL)
    for name in ("a", "b"):
        train_supervised(model_dir, samples, screens.__getitem__, tmp_path / name, config)
    assert torch.equal(load_model(tmp_path / "a").lm_head.weight, load_model(tmp_path / "b").lm_head.weight)


def test_leaves_nothing_elsewhere_that_a_kill_would_leave_for_good(model_dir, samples, screens, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    config = SupervisedConfig(max_steps=1, batch_size=2)
    train_supervised(model_dir, samples, screens.__getitem__, tmp_path / "warm", config)
    assert [path.name for path in tmp_path.iterdir()] == ["warm"]


def test_ends_by_time(model_dir, samples, screens, tmp_path):
    config = SupervisedConfig(max_seconds=0.4, **SMALL)
    end = train_supervised(model_dir, samples, screens.__getitem__, tmp_path / "warm", config)
    assert 0.4 <= end.seconds < 5 and end.steps >= 1


def test_ends_where_nothing_is_left_to_learn(model_dir, samples, screens, tmp_path):
    config = SupervisedConfig(max_steps=400, **SMALL)
    losses: list[float] = []
    end = train_supervised(
        *(model_dir, samples, screens.__getitem__, tmp_path / "warm", config),
        on_progress=lambda now: losses.append(now.loss),
        until_loss=4.0,
    )
    assert end.loss < 4.0 <= min(losses[:-1]) and end.steps == len(losses) < 400
    assert ModelTokens.load(tmp_path / "warm") == ModelTokens.load(model_dir)


def test_too_few_samples(model_dir, samples, screens, tmp_path):
    with pytest.raises(TrainingError, match="10 samples do not fill a batch of 16"):
        train_supervised(model_dir, samples, screens.__getitem__, tmp_path / "warm", SupervisedConfig(max_steps=1))


def test_a_loss_that_is_not_finite_leaves_no_model(model_dir, samples, screens, tmp_path):
    with pytest.raises(TrainingError, match="not finite; lower learning_rate"):
        config = SupervisedConfig(max_steps=50, **{**SMALL, "learning_rate": 1e38})
        train_supervised(model_dir, samples, screens.__getitem__, tmp_path / "warm", config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "set max_steps, max_seconds or both"),
        ({"max_steps": 1, "batch_size": 0}, "batch_size\n.*greater than or equal to 1"),
    ],
)
def test_wrong_settings_are_explained(values, words):
    with pytest.raises(ValueError, match=words):
        SupervisedConfig(**values)


def test_learning_rate_rises_then_follows_a_cosine():
    config = SupervisedConfig(max_steps=100, warmup_steps=10)
    shares = [learning_rate_share(config, step, step / 100) for step in (0, 4, 9)]
    assert shares == pytest.approx([0.1, 0.5, 1.0], abs=0.03)
    assert learning_rate_share(config, 50, 0.5) == pytest.approx(0.55)
    assert learning_rate_share(config, 100, 1.0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "trained_as",
    [
        TrainedAs({"bf16": True, "gradient_checkpointing": True}, freeze_vision=True),
        TrainedAs({"bf16": True}, lora=LoraSettings(r=4)),
    ],
    ids=["half precision, checkpointing, frozen tower", "adapter"],
)
def test_trains_with_the_trainers_own_ways_to_save_memory(trained_as, model_dir, samples, screens, tmp_path):
    config = SupervisedConfig(max_steps=20, **SMALL)
    seen = []
    end = train_supervised(
        model_dir, samples, screens.__getitem__, tmp_path / "warm", config, on_progress=seen.append,
        trained_as=trained_as,
    )  # fmt: skip
    assert end.loss < seen[0].loss
    before, after = (load_model(path).state_dict() for path in (model_dir, tmp_path / "warm"))
    assert before.keys() == after.keys(), "an adapter is merged"
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("language_model" in name for name in changed) and not any("visual" in name for name in changed)
