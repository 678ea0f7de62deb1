"""Ranks that hold parts of a model (FSDP2) train it as one process does, write it whole, and go on from there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training_lives import copy_run, live

from dart_train.data.curation import CurationConfig
from dart_train.data.manager import DataManager
from dart_train.metrics import read_metrics
from dart_train.trainer import checkpoint
from dart_train.trainer.models import load_model

pytestmark = [pytest.mark.train, pytest.mark.process, pytest.mark.timeout(800)]

PLAIN = {"optim": "sgd", "learning_rate": 0.1, "max_steps": 2, "groups_per_step": 3, "publish_steps": 1}
"""By plain gradient descent: Adam would blow the rounding of gradients of almost 0 up to the learning rate."""
CASES: dict[str, dict[str, object]] = {
    "everything": {
        "top_entropy_quantile": 0.5, "old_logprobs": "recompute", "num_iterations": 2, "beta": 0.1, "max_steps": 4,
        "micro_batch_tokens": 64, "gradient_accumulation_steps": 2, "loss_type": "dapo", "entropy_coef": 0.01,
        "gradient_checkpointing": True,
    },
    "adapter": {"use_peft": True, "lora_r": 4, "beta": 0.1, "old_logprobs": "recompute", "learning_rate": 1.0},
    "frozen tower": {"freeze_vision": True},
}  # fmt: skip


def open_run(root: Path) -> DataManager:
    curation = CurationConfig(group_size=4, max_staleness=None)
    return DataManager.open(f"sqlite:///{root}/data/dart.sqlite", root / "data", "run", config=curation)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, record_into) -> Path:
    root = tmp_path_factory.mktemp("recorded")
    with open_run(root) as data:
        for number in range(6):
            rewards = tuple(float((number + place) % 4 < 2) + 0.1 * number * place for place in range(4))
            record_into(data, f"g{number}", rewards, -6.0 - number / 4)
    return root


def result(root: Path) -> tuple[list[dict], dict[str, torch.Tensor]]:
    """What was logged, and the newest version's weights."""
    with open_run(root) as data:
        newest = data.newest_checkpoint()
        assert newest.version == len(list(read_metrics(root / "metrics.jsonl")))
        assert not data.counts().get("leased")
        model = load_model(newest.path)
    assert model.config.architectures == ["Qwen2_5_VLForConditionalGeneration"]
    return list(read_metrics(root / "metrics.jsonl")), model.state_dict()


@pytest.mark.parametrize("case", ["everything", "adapter", pytest.param("frozen tower", marks=pytest.mark.slow)])
def test_two_ranks_with_half_a_model_each_are_one_process(case, recorded, model_dir, tmp_path):
    settings = PLAIN | CASES[case]
    found = {}
    for ranks in (1, 2):
        root = copy_run(recorded, tmp_path / str(ranks))
        sharded = {"fsdp": True} if ranks > 1 else {}
        assert live(root, model_dir, ranks=ranks, **settings, **sharded) == [0] * ranks
        found[ranks] = result(root)
    (alone, one), (together, two) = found[1], found[2]
    assert len(alone) == len(together) == settings["max_steps"]
    for left, right in zip(alone, together, strict=True):
        for name in ("loss", "grad_norm", "entropy", "reward", "num_tokens", "batch/samples"):
            assert right[name] == pytest.approx(left[name], abs=2e-6, rel=1e-5), name
    torch.testing.assert_close(two, one, atol=2e-6, rtol=1e-5)
    untouched = load_model(model_dir).state_dict()
    assert any(not torch.equal(one[name], untouched[name]) for name in one)


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"use_peft": True, "lora_r": 4, "beta": 0.1}, marks=pytest.mark.slow)],
    ids=["full", "adapter"],
)
def test_ranks_that_are_killed_go_on_with_their_parts(options, recorded, model_dir, tmp_path):
    """Adam's moments are sharded too; the state is one for all ranks."""
    settings = {"max_steps": 4, "save_steps": 2, "fsdp": True} | options
    whole = copy_run(recorded, tmp_path / "whole")
    assert live(whole, model_dir, ranks=2, **settings) == [0, 0]
    root = copy_run(recorded, tmp_path / "killed")
    assert -9 in live(root, model_dir, "optimizer", 2, ranks=2, **settings)
    point = checkpoint.resume_point(root / "trainer")
    assert point is not None and point.step == 2
    if not options:
        assert checkpoint.first_non_finite(load_model(point.path)) is None  # a plain Hugging Face directory too
    assert live(root, model_dir, ranks=2, **settings) == [0, 0]
    (expected, weights), (found, resumed) = result(whole), result(root)
    assert [row["loss"] for row in found] == pytest.approx([row["loss"] for row in expected], abs=1e-6)
    assert [row["step"] for row in found] == [1, 2, 3, 4]
    torch.testing.assert_close(resumed, weights, atol=1e-6, rtol=1e-6)


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all(recorded, model_dir, tmp_path):
    root = copy_run(recorded, tmp_path / "run")
    settings = PLAIN | {"fsdp": True, "max_steps": 1, "groups_per_step": 1}
    assert live(root, model_dir, "poison", 0, ranks=2, **settings) == [0, 0]
    (row,) = read_metrics(root / "metrics.jsonl")
    assert row["skipped_steps"] == 1.0
    saved = load_model(root / "trainer" / "checkpoint-1").state_dict()
    torch.testing.assert_close(saved, load_model(model_dir).state_dict(), atol=0, rtol=0)
