"""The configurations of multi-turn learning run as they are shipped, cut to a few minutes: machinery, not learning."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dart_train.config.run_config import load_config
from dart_train.core.metrics_log import read_metrics
from dart_train.preflight.settings_check import settings_problems

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(900)


def run(name: str, runs_dir: Path, *settings: str) -> dict:
    """Run a shipped configuration with smaller numbers; returns its figures."""
    chosen = [item for setting in settings for item in ("--set", setting)]
    command = [
        sys.executable,
        "-m",
        "dart_train",
        "run",
        f"configs/{name}.yaml",
        "--runs-dir",
        str(runs_dir),
        "--plain",
    ]
    ended = subprocess.run([*command, *chosen], cwd=ROOT, capture_output=True, text=True, timeout=850)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return json.loads((runs_dir / name.replace("_", "-") / "report.json").read_text())


@pytest.mark.parametrize(("name", "kept"), [("drawn", 0.8), ("multiturn", 1.0)])
def test_all_of_the_curation_is_on_and_tasks_beside_are_not_trained(name, kept):
    config = load_config(ROOT / "configs" / f"{name}.yaml")
    assert settings_problems(config, 1) == []
    curation = config.data.curation
    assert curation.experience_pool and curation.dynamic_rollouts and curation.dynamic_length
    assert config.trainer.top_entropy_quantile == kept and config.trainer.tis_clip_max == 1.0
    assert len(config.train_tasks) >= (10 if name == "multiturn" else 5)
    assert not set(config.train_tasks) & set(config.evaluation.beside)


def test_the_multi_turn_set_is_on_three_kinds_of_programs():
    config = load_config(ROOT / "configs" / "multiturn.yaml")
    assert {task.partition("/")[0] for task in config.train_tasks} == {"miniwob", "dialogs", "sites"}


@pytest.mark.slow
@pytest.mark.scale
@pytest.mark.e2e
def test_the_drawn_run_keeps_its_best_version_and_reports(tmp_path):
    small = ("rollout.budget_rollouts=64", "evaluation.episodes=2", "evaluation.beside_episodes=1",
             "evaluation.monitor={every_rollouts: 16, episodes: 1}", "rollout.workers=4")  # fmt: skip
    figures = run("drawn", tmp_path, *small)
    assert figures["mean_actions"] >= 2 and figures["tasks_over_80"] is not None and figures["pool_used"] is not None
    rows = list(read_metrics(tmp_path / "drawn" / "metrics" / "held_out.jsonl"))
    assert rows and set(rows[0]["tasks"]) == set(load_config(ROOT / "configs" / "drawn.yaml").train_tasks)
    assert (tmp_path / "drawn" / "best" / "model.safetensors").exists()
    assert "Where rollouts went" in (tmp_path / "drawn" / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.desktop
@pytest.mark.parametrize("name", ["multiturn", "multiturn_short"])
def test_the_run_on_real_programs_works_as_it_is_shipped(name, tmp_path):
    small = ("demonstrations.per_task=3", "demonstrations.per_task_of={}", "warmup.max_steps=20", "rollout.workers=2",
             "rollout.budget_minutes=null", "rollout.budget_actions=null", "rollout.group_size=4",
             "rollout.budget_rollouts=16",
             "evaluation.episodes=1", "evaluation.beside_episodes=1",
             "evaluation.monitor={every_rollouts: 10, episodes: 1, workers: 1}")  # fmt: skip
    figures = run(name, tmp_path, *small)
    assert figures["rollouts"] > 0 and figures["success_after"] is not None
