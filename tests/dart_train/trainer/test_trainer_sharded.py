"""Ranks that hold parts of a model (FSDP2) train it as one process does, write it whole, and go on from there."""

from __future__ import annotations

import pytest
from rank_checks import (
    ADAPTER,
    EVERYTHING,
    PLAIN,
    assert_killed_ranks_go_on,
    assert_poison_is_skipped_on_all,
    trained_alone_and_together,
)
from training_lives import as_left, assert_same_training, copy_run, live

from dart_train.core.metrics_log import read_metrics

pytestmark = [pytest.mark.train, pytest.mark.process, pytest.mark.timeout(800)]

CASES: dict[str, dict[str, object]] = {
    "everything": EVERYTHING,
    "adapter": ADAPTER,
    "more parts than micro-batches": {"gradient_accumulation_steps": 3, "micro_batch_tokens": 2048},
    "frozen tower": {"freeze_vision": True},
}


@pytest.mark.parametrize(
    ("case", "meeting"),
    [
        ("everything", "micro_batch"),
        ("everything", "step"),
        ("more parts than micro-batches", "step"),
        ("adapter", "auto"),
        pytest.param("frozen tower", "auto", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_with_half_a_model_each_are_one_process(case, meeting, recorded, model_dir, tmp_path):
    settings = PLAIN | CASES[case]
    shared = {"fsdp": True, "reduce_gradients": meeting}
    alone, together = trained_alone_and_together(recorded, model_dir, tmp_path, shared, **settings)
    assert_same_training(alone, together, settings["max_steps"], model_dir)


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"use_peft": True, "lora_r": 4, "beta": 0.1}, marks=pytest.mark.slow)],
    ids=["full", "adapter"],
)
def test_ranks_that_are_killed_go_on_with_their_parts(options, recorded, model_dir, tmp_path):
    """Adam's moments are sharded too; the state is one for all ranks."""
    assert_killed_ranks_go_on(recorded, model_dir, tmp_path, fsdp=True, **options)


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all(recorded, model_dir, tmp_path):
    assert_poison_is_skipped_on_all(recorded, model_dir, tmp_path, fsdp=True)


LONG = {"micro_batch_tokens": 2048, "optim": "sgd", "learning_rate": 0.1, "max_steps": 1, "groups_per_step": 3}


def test_a_step_that_would_not_fit_is_cut_on_all_ranks_before_it_begins(recorded, model_dir, tmp_path):
    """What the ranks would take is known: 3 MiB are more than the weights, and less than all rows at once."""
    ample, short = (copy_run(recorded, tmp_path / name) for name in ("ample", "short"))
    assert live(ample, model_dir, ranks=2, fsdp=True, **LONG) == [0, 0]
    assert live(short, model_dir, ranks=2, fsdp=True, device_memory_mb=3, **LONG) == [0, 0]
    assert_same_training(as_left(ample), as_left(short), 1, model_dir)
    (row,) = read_metrics(short / "metrics.jsonl")
    assert row["memory_retries"] > 0 and row["batch/micro_batches"] > 0


def test_a_step_that_never_fits_is_refused_before_it_begins(recorded, model_dir, tmp_path):
    root = copy_run(recorded, tmp_path / "run")
    assert live(root, model_dir, ranks=2, fsdp=True, device_memory_mb=1, **LONG) == [1, 1]
