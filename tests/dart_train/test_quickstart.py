"""The promise of the quick start, on this machine: it learns, and what must not learn does not. Many minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "quickstart.yaml"

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(3600)]


def dart_train(command: str, runs_dir: Path, *arguments: str) -> None:
    line = [
        sys.executable,
        "-m",
        "dart_train",
        command,
        str(CONFIG),
        "--runs-dir",
        str(runs_dir),
        "--plain",
        *arguments,
    ]
    subprocess.run(line, check=True, cwd=ROOT)


def figures(runs_dir: Path, name: str) -> dict:
    return json.loads((runs_dir / name / "report.json").read_text())


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> tuple[Path, dict]:
    runs_dir = tmp_path_factory.mktemp("runs")
    dart_train("run", runs_dir)
    dart_train("controls", runs_dir)
    return runs_dir, figures(runs_dir, "quickstart")


def assert_learned(found: dict) -> None:
    assert found["success_before"] <= 0.50
    assert found["success_after"] >= 0.80
    assert found["success_before_ci_high"] < found["success_after_ci_low"]


def test_it_learns(first):
    assert_learned(first[1])
    assert first[1]["env_utilisation"] >= 0.6


def test_supervised_training_for_the_same_time_stays_below(first):
    found = first[1]
    assert found["success_supervised_ci_high"] < found["success_after_ci_low"]


def test_shuffled_rewards_teach_nothing(first):
    found = first[1]
    assert found["success_shuffled"] < found["success_before"] + 0.10


@pytest.mark.parametrize("seed", [1, 2])
def test_it_learns_with_other_seeds(tmp_path, seed):
    dart_train("run", tmp_path, "--set", f"seed={seed}", "--set", "controls.supervised=false")
    assert_learned(figures(tmp_path, "quickstart"))
