"""The wheel with [train], in an empty directory: what `dart-train init` writes is checked, and run to its report."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.package.test_first_steps import CHECKOUT

pytestmark = [pytest.mark.package, pytest.mark.timeout(900)]
SHORT = (
    "demonstrations.per_task=16", "warmup.max_steps=20", "rollout.budget_rollouts=32", "evaluation.episodes=4",
    "warmup.batch_size=16", "trainer.groups_per_step=2", "data.curation.experience_pool=true",
    "data.curation.pool_sources=[oracle]",
)  # fmt: skip
"""A first update within a minute: the pool gives groups that fail as a whole a success, so that there is one."""


def dart_train(*arguments: str, cwd: Path) -> str:
    """What the installed program prints, on both streams."""
    python = os.environ.get("DART_TRAIN_PYTHON")
    assert python, "these tests need the built wheel in an environment of its own: make test-package"
    others = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(Path(python).with_name("dart-train")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=others, timeout=840)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return done.stdout + done.stderr


def test_a_first_run_from_the_wheel_alone(tmp_path):
    said = dart_train("init", "quickstart", cwd=tmp_path)
    assert "dart-train run run.yaml" in said and not CHECKOUT.search(said)
    assert not CHECKOUT.search((tmp_path / "run.yaml").read_text())
    assert "trainer on the CPU" in dart_train("run", "run.yaml", "--dry-run", cwd=tmp_path)
    assert not (tmp_path / "runs").exists(), "a dry run writes nothing"
    sets = [part for value in SHORT for part in ("--set", value)]
    said = dart_train("run", "run.yaml", *sets, cwd=tmp_path)
    run = tmp_path / "runs" / "first"
    assert "Success on held-out seeds" in said and (run / "report.html").is_file() and not CHECKOUT.search(said)
    assert json.loads((run / "report.json").read_text())["trained_steps"] >= 1
