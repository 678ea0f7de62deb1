"""The paper's setting, `configs/dart_osworld_7b.yaml`: it resolves, and its file drives a whole run of a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dart_train.config.run_config import load_config
from dart_train.core.metrics_log import read_metrics
from dart_train.preflight.settings_check import library_check, settings_problems
from dart_train.terminal.panel import View, plain_line
from tests.helpers.gpus import H100, fake_gpus, gpu_rows

CONFIG = Path(__file__).parents[3] / "configs" / "dart_osworld_7b.yaml"
SMALL = [
    "name=small",
    "model.path=tiny",
    "cluster.desktops=2",
    "agent.max_pixels=200704",  # of the tiny model: 5 screenshots must fit its positions
    "rollout.tasks=[fake/*]",
    "rollout.workers=2",
    "rollout.group_size=4",
    "rollout.max_steps=2",
    "rollout.budget_rollouts=400",  # never reached: the trainer's steps end the run
    "rollout.sampling.max_tokens=8",
    "rollout.engine.kind=transformers",
    "rollout.engine.options={}",
    "rollout.engine.replicas=1",
    "resources.engine_gpus=0",
    "resources.trainer_ranks=2",  # by torchrun and FSDP2, as on GPUs
    "trainer.use_cpu=true",
    "data.curation.drop_no_signal=false",  # an untrained model fails everywhere
    "data.curation.max_staleness=50",
    "trainer.groups_per_step=2",
    "trainer.max_steps=2",
    "trainer.save_steps=1",
    "trainer.torch_threads=1",
    "evaluation.episodes=1",
]


def dart_train(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dart_train", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=550)


def test_it_resolves():
    config = load_config(CONFIG)
    assert settings_problems(config, 6) == []
    library_check(config, 6)
    assert (config.rollout.group_size, config.trainer.beta, config.agent.screenshots) == (8, 0.1, 5)


@pytest.mark.thorough
@pytest.mark.process
def test_a_dry_run_prints_what_it_resolves_to(tmp_path, monkeypatch):
    fake_gpus(monkeypatch, tmp_path.with_name("bin"), gpu_rows(*[H100] * 8))
    result = dart_train(
        "run", str(CONFIG), "--dry-run", "--show", "--runs-dir", str(tmp_path), "--set", "rollout.workers=7"
    )
    assert result.returncode == 1 and "model.path: no model" in result.stderr, "which is not on this machine"
    printed = tmp_path / "printed.yaml"
    printed.write_text(result.stdout)
    assert load_config(printed) == load_config(CONFIG, ["rollout.workers=7"])
    assert list(tmp_path.iterdir()) == [printed]


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.train
@pytest.mark.timeout(600)
def test_the_same_file_trains_a_tiny_model(tmp_path):
    overrides = [word for item in SMALL for word in ("--set", item)]
    result = dart_train("run", str(CONFIG), "--runs-dir", str(tmp_path), "--plain", *overrides)
    logs = {path.name: path.read_text() for path in (tmp_path / "small" / "logs").glob("*.log")}
    assert result.returncode == 0, (result.stdout, result.stderr, logs)
    run = tmp_path / "small"
    rows = {name: list(read_metrics(run / "metrics" / f"{name}.jsonl")) for name in ("trainer", "rollout", "data")}
    assert [row["step"] for row in rows["trainer"]] == [1, 2]
    assert "trainer on the CPU in 2 ranks" in result.stdout and "--nproc-per-node=2" in logs["learn.log"]
    figures = json.loads((run / "report.json").read_text())
    assert figures["rollouts"] >= 4 and figures["rollouts"] < 400
    assert 0 <= figures["rollout_utilisation"] <= 1
    # What panel and report read is what the modules write.
    assert {"loss", "entropy", "staleness/mean", "staleness/max", "perf/step_s"} <= rows["trainer"][0].keys()
    assert "sampling/importance_sampling_ratio/mean" in rows["trainer"][0]
    assert {"rollouts", "budget", "success", "desktops", "env_utilisation", "actions_per_min"} <= rows["rollout"][
        0
    ].keys()
    assert {"name", "version", "busy_share", "in_flight"} <= rows["rollout"][-1]["engines"][0].keys()
    assert {"eligible_groups", "no_signal", "stale"} <= rows["data"][0].keys()
    assert "step 2" in plain_line(View("small", current="rl", rollout=rows["rollout"][-1], trainer=rows["trainer"][-1]))
    # 5 screenshots in UI-TARS' own words, within the bounds of the file.
    placed = json.loads((run / "checkpoints" / "v000000" / "preprocessor_config.json").read_text())
    assert (placed["min_pixels"], placed["max_pixels"]) == (78400, 200704)
    assert yaml.safe_load((run / "config.yaml").read_text())["agent"]["style"] == "ui_tars"
