"""Directories of weights stay whole, whenever the process dies."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dart_train.core.train_errors import TrainingError
from dart_train.trainer.weights import checkpoint
from tests.helpers.waiting import wait_until

SCRIPT = """
import sys
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer import DartGRPOConfig, DartGRPOTrainer
root, model = sys.argv[1:]
data = DataManager.open(f"sqlite:///{root}/data/dart.sqlite", f"{root}/data", "run",
                        config=CurationConfig(group_size=4, max_staleness=None))
config = DartGRPOConfig(output_dir=f"{root}/trainer", use_cpu=True, beta=0.0, top_entropy_quantile=1.0,
                        groups_per_step=1, max_steps=1000, save_steps=1, torch_threads=1)
DartGRPOTrainer(model, config, data).run()
"""


def directories(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)


def test_prune_keeps_the_newest_and_what_may_be_loaded(tmp_path):
    directories(tmp_path, *(f"v{version:06d}" for version in range(8)), "v_other", ".tmp-v000009-1")
    assert checkpoint.old_versions(tmp_path, keep=4, served=2) == [0, 1]
    assert checkpoint.old_versions(tmp_path, keep=4, served=7) == [0, 1, 2, 3]
    assert checkpoint.old_versions(tmp_path, keep=4, served=7, best=2) == [0, 1, 3]
    assert checkpoint.old_versions(tmp_path, keep=2, served=7, first=5) == [5]


def test_a_version_that_a_starting_engine_may_read_stays_for_a_while(tmp_path):
    now = time.time()
    for version, age in enumerate((300, 130, 60, 30, 0)):
        checkpoint.version_dir(tmp_path, version).mkdir()
        os.utime(checkpoint.version_dir(tmp_path, version), (now - age, now - age))
    assert checkpoint.old_versions(tmp_path, keep=2, served=4) == [0, 1, 2]
    assert checkpoint.old_versions(tmp_path, keep=2, served=4, keep_s=120.0) == [0, 1]
    checkpoint.remove_version(tmp_path, 3)
    checkpoint.remove_version(tmp_path, 3)
    assert not (tmp_path / "v000003").exists() and not list(tmp_path.glob(".tmp-removed*"))


def test_resume_point_is_the_newest_complete_state(tmp_path):
    assert checkpoint.resume_point(tmp_path / "nothing") is None
    directories(tmp_path, "checkpoint-9", "checkpoint-10", "checkpoint-11")
    newest = checkpoint.ResumePoint(tmp_path / "checkpoint-10", 10, 5, 1, lease=7, skipped=2, best=3)
    checkpoint.mark_complete(checkpoint.ResumePoint(tmp_path / "checkpoint-9", 9, 5, 0))
    checkpoint.mark_complete(newest)
    assert checkpoint.resume_point(tmp_path) == newest
    assert [path.name for path in checkpoint.remove_incomplete(tmp_path)] == ["checkpoint-11"]
    checkpoint.mark_incomplete(newest.path)  # about to be written again
    assert checkpoint.resume_point(tmp_path).step == 9
    assert checkpoint.remove_incomplete(tmp_path) == [newest.path]


@pytest.mark.parametrize("damage", ["cut", "gone", "state"])
def test_a_damaged_state_is_named_and_an_older_one_taken(tmp_path, caplog, damage):
    for step in (1, 2):
        path = tmp_path / f"checkpoint-{step}"
        path.mkdir()
        (path / "model.safetensors").write_bytes(b"x" * 100)
        checkpoint.mark_complete(checkpoint.ResumePoint(path, step, step, 0, lease=step))
    weights, state = path / "model.safetensors", path / checkpoint.STATE_FILE
    if damage == "cut":
        weights.write_bytes(b"x" * 60)
    elif damage == "gone":
        weights.unlink()
    else:
        state.write_text(state.read_text()[:20])
    with pytest.raises(TrainingError, match=r"checkpoint-2 is damaged: .*resume from an older one"):
        checkpoint.read_resume_point(path)
    point = checkpoint.resume_point(tmp_path)
    assert point is not None and point.step == 1
    assert "checkpoint-2 is damaged" in caplog.text
    assert checkpoint.remove_incomplete(tmp_path) == []
    assert sorted(item.name for item in tmp_path.iterdir()) == ["checkpoint-1", "damaged-checkpoint-2"]


@pytest.mark.train
def test_a_write_that_fails_leaves_what_was_there(tmp_path, model_dir):
    from dart_train.trainer.grpo_trainer import load_model

    model = load_model(model_dir)
    target = checkpoint.write_model(model, tmp_path / "v000001", model_dir)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    assert before.keys() >= {"config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"}
    with pytest.raises(FileNotFoundError):
        checkpoint.write_model(model, target, tmp_path / "missing")
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert list(tmp_path.iterdir()) == [target]
    checkpoint.write_model(model, target, model_dir)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.slow
@pytest.mark.train
def test_killed_at_any_moment_it_goes_on(tmp_path, data, record_group, make_config, model_dir):
    from dart_train.trainer.grpo_trainer import DartGRPOTrainer, load_model

    for number in range(40):
        record_group(f"g{number}")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path), str(model_dir)])
    try:
        _wait_for_version(data, process, 4)
        time.sleep(random.uniform(0.0, 0.05))  # not a wait for anything: another moment of a step each time
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    for path in (tmp_path / "checkpoints").glob("v*"):
        assert torch.isfinite(load_model(path).lm_head.weight).all()
    point = checkpoint.resume_point(tmp_path / "trainer")
    assert point is not None and point.step >= 3
    before = data.newest_checkpoint().version
    config = make_config(groups_per_step=1, max_steps=point.step + 2)
    trainer = DartGRPOTrainer(model_dir, config, data)
    trainer.run()
    assert trainer.state.global_step == point.step + 2
    assert data.newest_checkpoint().version >= before + 2
    assert data.counts().get("leased", 0) == 0
    assert not list(tmp_path.glob("*/.tmp-*"))


def _wait_for_version(data, process: subprocess.Popen, version: int) -> None:
    def there() -> bool:
        newest = data.newest_checkpoint()
        return newest is not None and newest.version >= version

    wait_until(there, 100, trouble=lambda: process.poll() is not None, look_s=0.002)


@pytest.mark.parametrize(
    ("written", "saved", "other"),
    [(None, False, True), ("pytorch_model_fsdp_0/.metadata", True, False)],
)
def test_a_state_is_resumed_as_it_was_sharded(written, saved, other, tmp_path):
    if written:
        (tmp_path / written).parent.mkdir(exist_ok=True)
        (tmp_path / written).touch()
    point = checkpoint.ResumePoint(tmp_path, step=4, version=3, unpublished=0)
    checkpoint.check_layout(point, sharded=saved)
    with pytest.raises(TrainingError, match="use the setting that it was saved with, or begin from .* version 3"):
        checkpoint.check_layout(point, sharded=other)
