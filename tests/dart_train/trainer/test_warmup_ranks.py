"""A warm-up of ranks that hold parts of a model, started as a run starts it: the training of one process."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch
from training_lives import copy_run, open_run

from dart_train.config.run_config import dump_config, parse_config
from dart_train.core.metrics_log import read_metrics
from dart_train.core.package_version import VERSION
from dart_train.launch.pipeline import placed, words_of
from dart_train.placement.placement import place
from dart_train.processes import warmup
from dart_train.processes.process_context import ProcessContext, open_data
from dart_train.run.run_directory import RunDirectory, write_json
from dart_train.run.supervisor import python_process
from dart_train.trainer.weights.model_loading import load_model

pytestmark = [pytest.mark.scale, pytest.mark.train, pytest.mark.process, pytest.mark.timeout(600)]

WARM = {"max_steps": 6, "batch_size": 5, "learning_rate": 1e-3, "warmup_steps": 1, "threads": 1}


def warm_up(recorded, model_dir, where, ranks, **trainer):
    """Version 1 of a run that warms up on its recorded successes: its losses by step, and its weights."""
    values = {
        "name": "run",
        "model": {"path": str(model_dir)},
        "resources": {"trainer_ranks": ranks, "engine_gpus": 0},
        "rollout": {"tasks": ["fake/click"]},
        "warmup": {**WARM, "pool_sources": ["rollout"]},
        "trainer": {"use_cpu": True, "gradient_checkpointing": True, **trainer},
    }
    config, run = parse_config(values), RunDirectory(copy_run(recorded, where / "run"))
    run.config.write_text(dump_config(config))
    write_json(run.root / "run.json", {"version": VERSION})
    with open_run(run.root) as data:
        data.publish(0, model_dir, source="initial")
    if ranks == 1:
        warmup.main(ProcessContext(config, run))
    else:
        words = (*words_of("warmup", str(run.config)), "--runs-dir", str(where))
        spec = python_process("warmup", "dart_train", *words)
        spec = placed(spec, "warmup", place(config, []))
        done = subprocess.run(
            spec.argv, env={**os.environ, **spec.env}, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
    with open_data(config, run) as data:
        assert [row.source for row in data.checkpoints()] == ["warmup", "initial"]
    progress = [row for row in read_metrics(run.metrics("progress")) if row["done"] == row["total"]]
    assert [row["done"] for row in progress] == [WARM["max_steps"]], "the main rank alone says how far it is"
    return progress[-1]["detail"], load_model(run.checkpoint(1)).state_dict()


@pytest.mark.parametrize(
    ("options", "sharing"),
    [
        pytest.param({}, {}, id="all weights, checkpointing"),
        pytest.param({"use_peft": True, "lora_r": 4}, {}, id="adapter, checkpointing", marks=pytest.mark.slow),
        pytest.param({}, {"context_parallel": 2}, id="half of each row"),
    ],
)
def test_ranks_with_half_a_model_each_warm_up_as_one_process(options, sharing, recorded, model_dir, tmp_path):
    """Five samples are three of one rank and two of the other, or both have slices of all five.

    Adam takes rounding of almost 0 for a direction.
    """
    (alone, one) = warm_up(recorded, model_dir, tmp_path / "1", 1, **options)
    (together, two) = warm_up(recorded, model_dir, tmp_path / "2", 2, fsdp=True, **sharing, **options)
    assert alone == together
    before = load_model(model_dir).state_dict()
    assert one.keys() == two.keys() == before.keys()
    changed = [name for name in one if not torch.equal(one[name], before[name])]
    assert any("visual" in name for name in changed) == (not options) and any("language" in name for name in changed)
    for name in changed:
        moved, apart = (one[name] - before[name]).abs().mean(), (one[name] - two[name]).abs().mean()
        assert apart <= 0.02 * moved, name
