"""Ranks that share rows (context parallelism) train as one process does: losses, numbers and weights."""

from __future__ import annotations

import pytest
from rank_checks import ADAPTER, EVERYTHING, PLAIN, trained_alone_and_together
from training_lives import as_left, assert_same_training, copy_run, live

from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_train.core.metrics_log import read_metrics
from tests.helpers.parameters import slow_but

pytestmark = [pytest.mark.scale, pytest.mark.train, pytest.mark.process, pytest.mark.timeout(800)]

SHARED = {"fsdp": True, "context_parallel": 2}


@pytest.mark.parametrize(
    ("settings", "meeting"),
    [
        pytest.param(EVERYTHING, "micro_batch", id="everything"),
        pytest.param(EVERYTHING | {"loss_type": "bnpo"}, "step", id="mean of each rank", marks=pytest.mark.slow),
        pytest.param(ADAPTER, "auto", id="adapter", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_that_share_rows_are_one_process(settings, meeting, recorded, model_dir, tmp_path):
    """Selection by entropy, policies before, a reference, several micro-batches, and updates."""
    settings = PLAIN | settings
    shared = SHARED | {"reduce_gradients": meeting}
    alone, together = trained_alone_and_together(recorded, model_dir, tmp_path, shared, **settings)
    assert_same_training(alone, together, settings["max_steps"], model_dir)
    for left, right in zip(alone[0], together[0], strict=True):
        for name in ("batch/micro_batches", "batch/rows", "step_entropy_kept"):
            assert right.get(name) == left.get(name), name


@pytest.mark.parametrize("family", slow_but(["qwen3_5_moe"], ["qwen3_5_moe", "qwen3_vl"]))
def test_recurrent_layers_and_deeper_features_train_alike(family, recorded, tmp_path):
    shape = TinyModelConfig(
        family=family, hidden_size=32, layers=4, vision_hidden_size=32, vision_layers=1, intermediate_size=64
    )
    model_dir = build_tiny_model(tmp_path / "model", seed=1, config=shape)
    settings = PLAIN | {"gradient_checkpointing": True, "max_steps": 1}
    alone, together = trained_alone_and_together(recorded, model_dir, tmp_path, SHARED, **settings)
    assert_same_training(alone, together, settings["max_steps"], model_dir)


def test_groups_of_two_among_four_ranks_are_one_process(recorded, model_dir, tmp_path):
    """Two groups train on rows of their own, two ranks on each."""
    settings = PLAIN | {"max_steps": 1, "micro_batch_tokens": 64, "top_entropy_quantile": 0.5, "loss_type": "dapo"}
    found = []

    for ranks, shared in ((1, {}), (4, SHARED)):
        root = copy_run(recorded, tmp_path / str(ranks))
        assert live(root, model_dir, ranks=ranks, **settings, **shared) == [0] * ranks
        found.append(as_left(root))
    assert_same_training(*found, 1, model_dir)


@pytest.mark.slow
def test_a_step_that_would_not_fit_is_cut_by_both_ranks_alike(recorded, model_dir, tmp_path):
    """What a slice takes is known: not all rows fit at once, and each of them does."""
    settings = PLAIN | {"micro_batch_tokens": 2048, "max_steps": 1}
    ample, short = (copy_run(recorded, tmp_path / name) for name in ("ample", "short"))
    assert live(ample, model_dir, ranks=2, **settings, **SHARED) == [0, 0]
    assert live(short, model_dir, ranks=2, **settings, **SHARED, device_memory_mb=3) == [0, 0]
    assert_same_training(as_left(ample), as_left(short), 1, model_dir)
    (row,) = read_metrics(short / "metrics.jsonl")
    assert row["memory_retries"] > 0


@pytest.mark.slow
def test_a_run_goes_on_with_other_numbers_of_ranks_to_a_row(recorded, model_dir, tmp_path):
    """A state does not know how rows were shared."""
    found = []
    for name, sharing in (("alone", (1, 1)), ("changed", (2, 1))):
        root = copy_run(recorded, tmp_path / name)
        for steps, count in enumerate(sharing, 1):
            settings = PLAIN | {"groups_per_step": 2, "save_steps": 1, "max_steps": steps}
            assert live(root, model_dir, ranks=2, **settings, fsdp=True, context_parallel=count) == [0, 0]
        found.append(as_left(root))
    assert_same_training(*found, 2, model_dir)


def test_heads_that_ranks_cannot_share_are_refused_before_anything_is_loaded(recorded, model_dir, tmp_path):
    """The tiny model has four heads; three ranks would each have one and a part."""
    root = copy_run(recorded, tmp_path / "run")
    assert live(root, model_dir, ranks=3, **PLAIN, fsdp=True, context_parallel=3) == [1, 1, 1]
    assert not (root / "checkpoints").exists()
