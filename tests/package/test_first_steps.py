"""What a user of the wheel alone does first, in an empty directory: `init`, a first table, help, `doctor`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.package
CHECKOUT = re.compile(r"\bmake (?:setup|apps|quickstart)\b|(?<![\w/])docs/[\w/]+\.md|\bscripts/\w|(?<![\w/])configs/")


def program(name: str, *arguments: str, cwd: Path, status: int = 0) -> str:
    """What an installed program prints, on both streams."""
    python = os.environ.get("DART_LIGHT_PYTHON")
    assert python, "these tests need the built wheel in an environment of its own: make test-package"
    others = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(Path(python).with_name(name)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=others, timeout=110)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_function_of_ones_own_is_scored_in_two_commands(tmp_path):
    said = program("dart-agent", "init", "function", cwd=tmp_path)
    assert "https://" in said and not CHECKOUT.search(said)
    command = ("eval", "fake/click-button", "--config", "agent.yaml", "--n", "4", "--json", "scores.json")
    program("dart-agent", *command, cwd=tmp_path)
    assert json.loads((tmp_path / "scores.json").read_text())["scores"][0]["successes"] == 4
    assert "nothing was written" in program("dart-agent", "init", "function", cwd=tmp_path, status=1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("dart-gym", "cluster"), ("dart-gym", "tasks"), ("dart-agent", "server"), ("dart-agent", "hosted")],
)
def test_first_files_are_in_the_wheel(name, kind, tmp_path):
    said = program(name, "init", kind, cwd=tmp_path)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written and not CHECKOUT.search(said + "".join(path.read_text() for path in written))


def test_training_names_the_extra_that_it_needs(tmp_path):
    program("dart-train", "init", cwd=tmp_path)
    said = program("dart-train", "run", "run.yaml", cwd=tmp_path, status=1)
    assert "pip install 'dart-gui[train]'" in said and len(said.splitlines()) == 1 and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "command"), [("dart-gym", "serve"), ("dart-gym", "doctor"), ("dart-agent", "eval"), ("dart-agent", "init")]
)
def test_help_names_nothing_that_only_a_checkout_has(name, command, tmp_path):
    assert not CHECKOUT.search(program(name, command, "--help", cwd=tmp_path))


def test_a_light_install_is_healthy_where_desktops_are(tmp_path):
    """Nobody asked for training: it is not missing."""
    said = program("dart-gym", "doctor", cwd=tmp_path)
    assert "not requested: training (pip install 'dart-gui[train]')" in " ".join(said.split())
    assert "This machine is ready" in said and not CHECKOUT.search(said)
