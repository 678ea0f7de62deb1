"""Temporary directories of processes that were killed are removed by the next one, and nobody else's are."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dart_gym.utils.owned_directories import make_owned_directory, owned_directory, owner_lives
from dart_gym.utils.processes import own_pid_namespace, start_time

LEAVE_IT = """
import os
from dart_gym.utils.owned_directories import make_owned_directory
print(make_owned_directory("node"), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_directory_is_private_and_ends_with_its_block(place):
    with owned_directory("engines") as first, owned_directory("engines") as second:
        assert first.is_dir() and second.is_dir() and first != second
        assert first.stat().st_mode & 0o777 == 0o700
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_of_any_kind(place):
    environment = {**os.environ, "TMPDIR": str(place)}
    killed = subprocess.run([sys.executable, "-c", LEAVE_IT], capture_output=True, text=True, env=environment)
    left = Path(killed.stdout.strip())
    assert killed.returncode == -9 and left.is_dir() and left.name.startswith("dart-node-")
    with owned_directory("engines") as path:
        assert path.is_dir() and not left.exists()


def test_what_is_no_directory_of_a_dead_owner_stays(place):
    dead = make_owned_directory("engines")
    name = dead.name.replace(f".{os.getpid()}.", ".999999999.")
    (place / name).symlink_to(place)
    (place / "dart-something").mkdir()
    with owned_directory("engines"):
        assert (place / name).is_symlink() and (place / "dart-something").is_dir() and dead.is_dir()


def test_only_names_of_dead_owners_are_dead():
    space, pid, started = own_pid_namespace().strip("pid:[]"), os.getpid(), start_time(os.getpid())
    assert owner_lives(f"dart-node-{space}.{pid}.{started}-abc")
    assert not owner_lives(f"dart-node-{space}.{pid}.{(started or 0) + 1}-abc")
    assert owner_lives(f"dart-node-1.{pid}.{(started or 0) + 1}-abc"), "of another container nobody can tell"
    assert owner_lives("dart-node-something else")
