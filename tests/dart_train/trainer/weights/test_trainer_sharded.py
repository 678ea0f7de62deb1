"""Ranks that hold parts of a model (FSDP2) train it as one process does, write it whole, and go on from there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rank_checks import (
    ADAPTER,
    EVERYTHING,
    PLAIN,
    assert_killed_ranks_go_on,
    assert_poison_is_skipped_on_all,
    trained_alone_and_together,
)
from training_lives import as_left, assert_same_training, copy_run, forked, live

from dart_gym.utils.processes import free_port
from dart_train.core.metrics_log import read_metrics
from dart_train.trainer.memory.remembered_limits import FILE
from tests.helpers.parameters import slow_but

pytestmark = [pytest.mark.scale, pytest.mark.train, pytest.mark.process, pytest.mark.timeout(800)]

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
        pytest.param("everything", "step", marks=pytest.mark.slow),
        pytest.param("more parts than micro-batches", "step", marks=pytest.mark.slow),
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


@pytest.mark.parametrize("poisoned", slow_but([1], [0, 1]))
def test_ranks_train_on_after_a_step_without_a_gradient(poisoned, recorded, model_dir, tmp_path):
    """transformers looks at the first step's gradients for how to clip all later ones, and stacks norms of none."""
    root = copy_run(recorded, tmp_path / "run")
    settings = PLAIN | {"groups_per_step": 1, "fsdp": True, "max_grad_norm": 1.0, "max_steps": 3}
    assert live(root, model_dir, "poison", poisoned, ranks=2, **settings) == [0, 0]
    rows = list(read_metrics(root / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [1, 2, 3] and rows[-1]["skipped_steps"] == 1.0
    assert [row["update/relative"] > 0 for row in rows] == [number != poisoned for number in range(3)]


@pytest.mark.parametrize(
    ("before", "after", "shared"),
    [
        pytest.param(2, 3, {"fsdp": True}, marks=pytest.mark.slow),
        pytest.param(3, 2, {"fsdp": True}, marks=pytest.mark.slow),
        (2, 1, {}),
    ],
)
def test_a_run_goes_on_with_another_number_of_gpus(before, after, shared, recorded, model_dir, tmp_path):
    """A state is one for all ranks, however many wrote it and however many read it."""
    found = []
    for ranks in ((before, before), (before, after)):
        root = copy_run(recorded, tmp_path / f"{ranks[1]}")
        for steps, count in enumerate(ranks, 1):
            settings = PLAIN | {"groups_per_step": 2, "save_steps": 1, **shared, "max_steps": steps}
            assert live(root, model_dir, ranks=count, **settings) == [0] * count
        found.append(as_left(root))
    assert_same_training(*found, 2, model_dir)


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


def test_memory_that_runs_out_in_a_pass_makes_the_next_life_smaller(recorded, model_dir, tmp_path):
    """The other rank waits for weights, and cannot be told: both end, and are started again as after any crash."""
    root = copy_run(recorded, tmp_path / "run")
    settings = LONG | {"fsdp": True}
    assert 0 not in live(root, model_dir, "memory", 0, ranks=2, **settings)
    limits = json.loads((root / "trainer" / FILE).read_text())
    assert limits == {"micro_batch_tokens": LONG["micro_batch_tokens"] // 2, "longest": None}
    assert not list(read_metrics(root / "metrics.jsonl"))
    assert live(root, model_dir, ranks=2, **settings) == [0, 0]
    ample = copy_run(recorded, tmp_path / "ample")
    assert live(ample, model_dir, ranks=2, **settings) == [0, 0]
    assert_same_training(as_left(ample), as_left(root), 1, model_dir)


def _count_gathers(model_dir: str, rank: int, port: int, out: str) -> None:
    """Gathers of weights in a step of a rank, with activation checkpointing and without."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    from dart_train.trainer.weights.ranks import Ranks
    from dart_train.trainer.weights.sharding import Cut, load_sharded

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    gather, calls, found = _fsdp_param_group.foreach_all_gather, [], []
    _fsdp_param_group.foreach_all_gather = lambda *args, **more: calls.append(1) or gather(*args, **more)
    for checkpointing in (False, True):
        model = load_sharded(model_dir, Cut(torch.device("cpu"), Ranks.current())).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        calls.clear()
        model(input_ids=torch.arange(20, 25)[None]).logits.sum().backward()
        found.append(len(calls))
    if rank == 0:
        Path(out).write_text(json.dumps([found, model.config.text_config.num_hidden_layers]))
    dist.destroy_process_group()


def test_activation_checkpointing_gathers_no_layer_once_more(model_dir, tmp_path):
    """Each layer once for its forward pass and once for its backward pass, the root once, computed again or not."""
    port, out = free_port(), tmp_path / "found.json"
    context = forked()
    ranks = [context.Process(target=_count_gathers, args=(str(model_dir), rank, port, str(out))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(300)
    assert [process.exitcode for process in ranks] == [0, 0]
    (plain, checkpointed), layers = json.loads(out.read_text())
    assert plain == checkpointed == 2 * layers + 1
