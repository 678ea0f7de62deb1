"""Fixtures of the hubs' tests: a cluster of drawn desktops on TCP, and a client in a process that can be killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dart_gym.cluster.conftest import desktops, start_server, tcp_server  # noqa: F401  fixtures
from tests.dart_gym.waiting import wait_for

ROOT = Path(__file__).parents[2]
TASK = "fake/two-steps"


@pytest.fixture
def until():
    """Waits until a function (or coroutine function) returns something true, and returns that."""
    return wait_for


@pytest.fixture
def targets(desktops):  # noqa: F811
    """Where a perfect user would click, by an instruction and the desktop that shows its buttons."""

    def find(instruction: str, desktop: int = -1) -> list[tuple[int, int]]:
        centers = {button.label: button.center for button in desktops[desktop].buttons}
        return [centers[label] for label in re.findall("'(.+?)'", instruction)]

    return find


@pytest.fixture
def osworld(tmp_path, monkeypatch):
    """A set of two tasks of OSWorld, one of which needs a program that is nowhere."""
    steps = {"plain": [], "absent": [{"type": "launch", "parameters": {"command": ["absent-program"]}}]}
    for name, config in steps.items():
        raw = {"id": name, "instruction": "", "config": config, "evaluator": {"func": "infeasible"}}
        (tmp_path / "tasks").mkdir(exist_ok=True)
        (tmp_path / "tasks" / f"{name}.json").write_text(json.dumps(raw))
    monkeypatch.setenv("DART_GYM_OSWORLD", str(tmp_path / "tasks"))


@pytest.fixture
def start_client(tmp_path):
    """Starts a program as a process of its own; what still runs at the end is killed."""
    started = []

    def start(program: str, *arguments: str) -> subprocess.Popen[str]:
        path = tmp_path / f"client{len(started)}.py"
        path.write_text(program)
        command = [sys.executable, str(path), *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def without():
    """Imports a module of `integrations` as where a package is not installed; what the error says."""

    def imported(package: str, folder: str, module: str) -> str:
        program = f"import sys; sys.modules[{package!r}] = None; sys.path.insert(0, {folder!r}); import {module}"
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 1
        return done.stderr.splitlines()[-1]

    return imported
