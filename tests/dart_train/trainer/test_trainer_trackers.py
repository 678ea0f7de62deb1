"""`report_to`: the experiment trackers get the trainer's numbers and settings, without a network."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dart_train.config.run_config import RunConfig
from dart_train.processes.learn import trainer_arguments
from dart_train.run.run_directory import RunDirectory

pytestmark = [pytest.mark.train, pytest.mark.process, pytest.mark.timeout(400)]

SCRIPT = """
import sys
from pathlib import Path
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer import DartGRPOConfig, DartGRPOTrainer

root, model_dir, tracker = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
curation = CurationConfig(group_size=4, max_staleness=None)
with DataManager.open(f"sqlite:///{root}/data/dart.sqlite", root / "data", "run", config=curation) as data:
    config = DartGRPOConfig(
        output_dir=str(root / "trainer"), use_cpu=True, beta=0.0, top_entropy_quantile=1.0, groups_per_step=2,
        max_steps=1, torch_threads=1, report_to=tracker, project="desktops", run_name="first", learning_rate=0.125,
    )
    DartGRPOTrainer(model_dir, config, data).run()
"""


def train(root: Path, model_dir: Path, tracker: str, **variables: str) -> None:
    """Train a step in a process of its own: trackers keep a run, and threads, per process."""
    command = [sys.executable, "-c", SCRIPT, str(root), str(model_dir), tracker]
    result = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.slow
def test_wandb_gets_the_numbers(data, record_group, model_dir, tmp_path):
    record_group("a"), record_group("b")
    train(
        tmp_path, model_dir, "wandb",
        WANDB_MODE="offline", WANDB_DIR=str(tmp_path), WANDB_PROJECT="desktops", WANDB_ERROR_REPORTING="false",
    )  # fmt: skip
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    found = read_wandb(file)
    assert found["train/reward"] == 0.5 and found["train/version"] == 1.0
    assert found["train/grad_norm"] > 0 and "train/loss" in found


def read_wandb(file: Path) -> dict[str, object]:
    """What was logged, of the protocol buffers that an offline run leaves."""
    from wandb.proto import wandb_internal_pb2

    found: dict[str, object] = {}
    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        for item in record.history.item:
            found[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return found


def log_records(data: bytes) -> Iterator[bytes]:
    """Records of a log in LevelDB's format: blocks of 32 KiB, of parts with checksum, length and kind before each."""
    place, whole = 7, b""  # after the file's own header
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # all of a record, or its last part
            yield whole
            whole = b""


@pytest.mark.slow
def test_trackio_gets_the_numbers(data, record_group, model_dir, tmp_path):
    record_group("a"), record_group("b")
    train(tmp_path, model_dir, "trackio", TRACKIO_DIR=str(tmp_path / "trackio"), HF_HUB_OFFLINE="1")
    code = (
        "import json, trackio; from trackio.sqlite_storage import SQLiteStorage;"
        "(run,) = trackio.Api().runs('desktops'); assert run.name == 'first';"
        "print(json.dumps(SQLiteStorage.get_logs('desktops', 'first'), default=str))"
    )
    variables = os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio")}
    result = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=90)
    assert result.returncode == 0, result.stderr[-2000:]
    found = {name: value for row in json.loads(result.stdout.splitlines()[-1]) for name, value in row.items()}
    assert found["train/reward"] == 0.5 and found["train/version"] == 1.0 and found["train/grad_norm"] > 0


def test_trackers_get_the_name_of_the_run(tmp_path):
    config = RunConfig.model_validate({"name": "mine", "rollout": {"tasks": ["fake/two-steps"]}})
    assert trainer_arguments(config, RunDirectory(tmp_path / "mine")).run_name == "mine"
