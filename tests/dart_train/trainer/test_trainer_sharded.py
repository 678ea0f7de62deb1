"""Ranks that hold parts of a model (FSDP2) train it as one process does, write it whole, and go on from there."""

from __future__ import annotations

import pytest
import torch
from training_lives import as_left, assert_same_training, copy_run, live

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


@pytest.mark.parametrize("case", ["everything", "adapter", pytest.param("frozen tower", marks=pytest.mark.slow)])
def test_two_ranks_with_half_a_model_each_are_one_process(case, recorded, model_dir, tmp_path):
    settings = PLAIN | CASES[case]
    found = {}
    for ranks in (1, 2):
        root = copy_run(recorded, tmp_path / str(ranks))
        sharded = {"fsdp": True} if ranks > 1 else {}
        assert live(root, model_dir, ranks=ranks, **settings, **sharded) == [0] * ranks
        found[ranks] = as_left(root)
    assert_same_training(found[1], found[2], settings["max_steps"], model_dir)


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
    (expected, weights), (found, resumed) = as_left(whole), as_left(root)
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
