"""Ranks that share the optimizer's state (DeepSpeed's ZeRO) train as one process does, and go on from there.

Needs the package, in an environment of its own: `make test-deepspeed`.
"""

from __future__ import annotations

import pytest
import torch
from rank_checks import (
    ADAPTER,
    EVERYTHING,
    PLAIN,
    assert_killed_ranks_go_on,
    assert_poison_is_skipped_on_all,
    trained_alone_and_together,
)
from safetensors.torch import load_file
from training_lives import as_left, assert_same_training, copy_run, live, open_run

from dart_train.core.metrics_log import read_metrics
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.weights import checkpoint

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(800)]


def zero(stage: int, **more: object) -> dict[str, object]:
    """Settings of ranks that share the optimizer's state."""
    return {"deepspeed": {"zero_optimization": {"stage": stage, **more}}}


CASES = {
    "stage 2": ({}, zero(2)),
    "stage 2, everything, small buckets": (EVERYTHING, zero(2, reduce_bucket_size=3000, allgather_bucket_size=3000)),
    "stage 1, adapter": (ADAPTER, zero(1)),
    "frozen tower, clipped": (
        {"freeze_vision": True, "max_grad_norm": 0.02},
        zero(2, overlap_comm=False, contiguous_gradients=False),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_with_half_an_optimizer_each_are_one_process(case, recorded, model_dir, tmp_path):
    more, shared = CASES[case]
    settings = PLAIN | more
    alone, together = trained_alone_and_together(recorded, model_dir, tmp_path, shared, **settings)
    assert_same_training(alone, together, settings["max_steps"], model_dir)


def test_a_rank_without_an_image_fills_the_same_buckets(record_into, make_prompt, screens, model_dir, tmp_path):
    """One long trajectory with a screenshot is one rank's share, three short ones without are the other's."""
    image = next(iter(screens))
    prompts = [(make_prompt("Click on the tab " * 40, image), (image,)), *[(make_prompt("no picture"), ())] * 3]
    with open_run(tmp_path / "recorded") as data:
        for key in ("a", "b"):
            record_into(data, key, (1.0, 0.0, 0.5, 0.2), -6.0, prompts=prompts)
    settings = PLAIN | {"groups_per_step": 1}
    alone, together = trained_alone_and_together(tmp_path / "recorded", model_dir, tmp_path, zero(2), **settings)
    assert_same_training(alone, together, 2, model_dir)


def test_passes_in_bfloat16_leave_weights_in_float32(recorded, model_dir, tmp_path):
    settings = PLAIN | {"bf16": True, "max_steps": 1}
    (one, _), (two, weights) = trained_alone_and_together(recorded, model_dir, tmp_path, zero(2), **settings)
    assert two[0]["entropy"] == pytest.approx(one[0]["entropy"], rel=1e-2)
    published = load_file(tmp_path / "2" / "checkpoints" / "v000001" / "model.safetensors")
    assert {item.dtype for item in published.values()} == {torch.float32}
    assert any(bool((item != item.bfloat16()).any()) for item in weights.values())


@pytest.mark.parametrize("options", [{}, {"use_peft": True, "lora_r": 4}], ids=["full", "adapter"])
def test_ranks_that_are_killed_go_on_with_their_parts(options, recorded, model_dir, tmp_path):
    """Adam's moments are each rank's own part; the engine writes them, and the state counts once all are there."""
    point = assert_killed_ranks_go_on(recorded, model_dir, tmp_path, **zero(2), **options)
    with pytest.raises(TrainingError, match="saved with deepspeed and training goes on without sharding"):
        checkpoint.check_layout(point, sharded_by=None)


def test_a_step_for_which_one_rank_has_no_memory_is_made_again(recorded, model_dir, tmp_path):
    """After a backward pass: what gathered until then must not have reached the engine."""
    settings = PLAIN | {"max_steps": 1}
    alone, together = (copy_run(recorded, tmp_path / str(ranks)) for ranks in (1, 2))
    assert live(alone, model_dir, **settings) == [0]
    assert live(together, model_dir, "memory", ranks=2, **settings, **zero(2)) == [0, 0]
    assert_same_training(as_left(alone), as_left(together), 1, model_dir)
    (row,) = read_metrics(together / "metrics.jsonl")
    assert row["memory_retries"] == 1.0


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all(recorded, model_dir, tmp_path):
    assert_poison_is_skipped_on_all(recorded, model_dir, tmp_path, **zero(2))
