from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from data_builders import Clock, open_manager

from dart_train.data import DataManager


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def data(tmp_path: Path, clock: Clock) -> Iterator[DataManager]:
    with open_manager(tmp_path, clock) as manager:
        yield manager


@pytest.fixture
def sandboxed() -> Callable[..., str]:
    """Runs a Python program under bubblewrap, so that a full or read-only disk is a real one."""

    def run(program: str, *mounts: str, argument: str) -> str:
        command = [
            "bwrap",
            "--die-with-parent",
            "--dev-bind",
            "/",
            "/",
            *mounts,
            sys.executable,
            "-c",
            program,
            argument,
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
