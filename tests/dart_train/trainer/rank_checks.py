"""What holds for ranks that hold parts of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from training_lives import as_left, copy_run, live

from dart_train.core.metrics_log import read_metrics
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.checkpoint import ResumePoint
from dart_train.trainer.weights.model_loading import load_model

PLAIN = {"optim": "sgd", "learning_rate": 0.1, "max_steps": 2, "groups_per_step": 3, "publish_steps": 1}
"""By plain gradient descent: Adam would blow the rounding of gradients of almost 0 up to the learning rate."""
EVERYTHING = {
    "top_entropy_quantile": 0.5, "old_logprobs": "recompute", "num_iterations": 2, "beta": 0.1, "max_steps": 4,
    "micro_batch_tokens": 64, "gradient_accumulation_steps": 2, "loss_type": "dapo", "entropy_coef": 0.01,
    "gradient_checkpointing": True,
}  # fmt: skip
ADAPTER = {"use_peft": True, "lora_r": 4, "beta": 0.1, "old_logprobs": "recompute", "learning_rate": 1.0}


def trained_alone_and_together(recorded: Path, model_dir: Path, where: Path, shared: dict, **settings: object) -> list:
    """What one process left, and two that share with each other."""
    found = []
    for ranks in (1, 2):
        root = copy_run(recorded, where / str(ranks))
        assert live(root, model_dir, ranks=ranks, **settings, **(shared if ranks > 1 else {})) == [0] * ranks
        found.append(as_left(root))
    return found


def assert_killed_ranks_go_on(recorded: Path, model_dir: Path, where: Path, **settings: object) -> ResumePoint:
    """Two ranks that die in their third step end as two that do not; returns where they went on."""
    settings = {"max_steps": 4, "save_steps": 2, **settings}
    whole = copy_run(recorded, where / "whole")
    assert live(whole, model_dir, ranks=2, **settings) == [0, 0]
    root = copy_run(recorded, where / "killed")
    assert -9 in live(root, model_dir, "optimizer", 2, ranks=2, **settings)
    point = checkpoint.resume_point(root / "trainer")
    assert point is not None and point.step == 2
    assert not (point.path / "model.safetensors").exists()  # nobody gathered it
    assert live(root, model_dir, ranks=2, **settings) == [0, 0]
    (expected, weights), (found, resumed) = as_left(whole), as_left(root)
    assert [row["loss"] for row in found] == pytest.approx([row["loss"] for row in expected], abs=1e-6)
    assert [row["step"] for row in found] == [1, 2, 3, 4]
    torch.testing.assert_close(resumed, weights, atol=1e-6, rtol=1e-6)
    return point


def saved_weights(state: Path, scratch: Path) -> dict[str, torch.Tensor]:
    """The weights of all ranks in a state, put together."""
    dcp_to_torch_save(state / "pytorch_model_fsdp_0", scratch / "whole.bin")
    return torch.load(scratch / "whole.bin")["model"]


def assert_poison_is_skipped_on_all(recorded: Path, model_dir: Path, where: Path, **settings: object) -> None:
    """A gradient that is not finite on one rank costs the step, and changes no weight."""
    root = copy_run(recorded, where / "run")
    settings = PLAIN | {"max_steps": 1, "groups_per_step": 1, **settings}
    assert live(root, model_dir, "poison", 0, ranks=2, **settings) == [0, 0]
    (row,) = read_metrics(root / "metrics.jsonl")
    assert row["skipped_steps"] == 1.0
    saved = saved_weights(root / "trainer" / "checkpoint-1", where)
    torch.testing.assert_close(saved, load_model(model_dir).state_dict(), atol=0, rtol=0)
