"""What `dart-train init quickstart` writes learns, and docs/tutorials/with_pip.md says what was measured of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dart_gym.utils.processes import die_with_parent

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "with_pip.md").read_text(encoding="utf-8")
MEASURED = json.loads((ROOT / "docs" / "measured" / "with_pip" / "first.json").read_text(encoding="utf-8"))
SHIPPED = ROOT / "dart_train" / "assets" / "first" / "quickstart" / "run.yaml"


def dart_train(*arguments: str, cwd: Path) -> str:
    """What the program prints in a directory that is no checkout."""
    command = [sys.executable, "-m", "dart_train", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, preexec_fn=die_with_parent()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_was_measured_is_what_is_shipped():
    assert yaml.safe_load(SHIPPED.read_text(encoding="utf-8")) == MEASURED["settings"]


def test_no_first_run_is_taught_wrong_instructions():
    for path in SHIPPED.parents[1].glob("*/run.yaml"):
        assert "wrong_instruction_share" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("label", ["before", "after"])
def test_the_page_says_what_was_measured(label: str):
    figures = MEASURED["report"]
    rate, low, high = (round(100 * figures[f"success_{label}{end}"]) for end in ("", "_ci_low", "_ci_high"))
    assert f"| {label} | {rate} % ({low}-{high}) |" in PAGE


def test_the_measured_run_learned():
    assert MEASURED["report"]["success_after_ci_low"] >= 0.8


@pytest.mark.thorough
@pytest.mark.process
def test_the_commands_print_what_the_page_shows(tmp_path):
    blocks = re.findall(r"^```(bash|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    said = dart_train("init", "quickstart", cwd=tmp_path) + dart_train("run", "run.yaml", "--dry-run", cwd=tmp_path)
    commands = [line for language, text in blocks if language == "bash" for line in text.splitlines()]
    assert commands == ["dart-train init quickstart", "dart-train run run.yaml --dry-run"]
    for line in (line for language, text in blocks if language == "text" for line in text.splitlines()):
        assert line in said.splitlines()


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(3600)
def test_it_learns(tmp_path):
    dart_train("init", "quickstart", cwd=tmp_path)
    dart_train("run", "run.yaml", "--plain", cwd=tmp_path)
    found = json.loads((tmp_path / "runs" / "first" / "report.json").read_text())
    assert found["success_after"] >= 0.8
