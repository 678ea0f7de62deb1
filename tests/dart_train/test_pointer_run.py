"""`configs/pointer.yaml` as a user starts it: rollouts by the head, GRPO through it, versions that engines load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dart_agent.grounding.pointer_model import PointerModel
from dart_agent.grounding.pointer_prompt import SETTINGS
from dart_agent.models.pointer_head import ATTRIBUTE, head_weights
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_train.config.run_config import load_config
from dart_train.core.metrics_log import read_metrics
from dart_train.processes.process_context import open_data
from dart_train.run.run_directory import RunDirectory

CONFIG = Path(__file__).parents[2] / "configs" / "pointer.yaml"

BUDGET = 160
"""An untrained head is right in one rollout of twenty: with 64, one run in twenty-five has nothing to learn from."""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.slow
def test_a_run_trains_the_head(tmp_path: Path):
    tiny = build_tiny_model(tmp_path / "tiny", config=TinyModelConfig(family="qwen3_vl", vision_layers=1))
    torch.manual_seed(0)
    start = PointerModel(tiny, begin="", dtype="float32").save(tmp_path / "start")
    changes = {"model.path": start, "rollout.budget_rollouts": BUDGET, "trainer.groups_per_step": 1}
    changes |= {"data.curation.drop_no_signal": "false", "evaluation.episodes": 4, "evaluation.greedy": "false"}
    changes |= {"rollout.engine.start_timeout_s": 500}  # the machine may have much else to do
    options = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "dart_train", "run", str(CONFIG), "--runs-dir", str(tmp_path), "--plain", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = RunDirectory(tmp_path / "pointer")
    steps = [row for row in read_metrics(run.metrics("trainer")) if "loss" in row]
    assert steps and all(row.get("dropped/special_token", 0) == 0 for row in steps)
    with open_data(load_config(CONFIG), run) as data:
        played = list(data.trajectories(source="rollout"))
        newest = data.newest_checkpoint()
    assert len(played) >= BUDGET
    assert all(len(step.response_ids) == len(step.logprobs) == 1 for one in played for step in one.steps)
    version = Path(newest.path)
    assert newest.version >= 1 and (version / SETTINGS).is_file()
    assert any(name.startswith(ATTRIBUTE) for name in load_file(version / "model.safetensors"))
    before, after = head_weights(start), head_weights(version)
    assert any(not torch.equal(before[name], after[name]) for name in before)
