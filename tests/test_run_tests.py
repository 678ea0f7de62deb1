"""`scripts/run_tests.py` in a directory of its own: a flaky test is named and counted, a broken one fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
SCRIPT = Path(__file__).parents[1] / "scripts" / "run_tests.py"
TESTS = """
from pathlib import Path

def test_good():
    pass

def test_flaky():
    tried = Path("tried")
    again = tried.exists()
    tried.touch()
    assert again

def test_bad():
    assert False
"""


def run(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(TESTS)
    command = [sys.executable, str(SCRIPT), "-q", "-n", "2", *options]
    environ = {key: value for key, value in os.environ.items() if key != "REPORTS"}
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, env=environ)


@pytest.mark.thorough
def test_what_passes_alone_is_named_and_counted_and_no_failure(tmp_path):
    done = run(tmp_path, "-k", "not bad")
    assert done.returncode == 0, done.stdout
    assert "flaky: test_it.py::test_flaky" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("2 passed, 1 flaky in ")
    assert (tmp_path / "build" / "flaky.txt").read_text() == "test_it.py::test_flaky\n"


@pytest.mark.slow
def test_what_fails_twice_fails(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("2 passed, 1 failed, 1 flaky in ")


def test_when_all_pass_pytest_has_the_last_word(tmp_path):
    done = run(tmp_path, "-k", "good")
    assert done.returncode == 0
    assert "1 passed" in done.stdout.splitlines()[-1] and "once more" not in done.stdout
    assert not (tmp_path / "build" / "flaky.txt").exists()
