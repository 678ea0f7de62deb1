from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from dart_gym.utils.processes import start_time
from dart_train.rollout.fleet.socket_directory import PREFIX, owner_lives, socket_directory

LEAVE_IT = """
import os
from dart_train.rollout.fleet.socket_directory import socket_directory
with socket_directory() as path:
    print(path, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_the_directory_is_private_and_ends_with_its_block(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket_directory() as first, socket_directory() as second:
        assert first.is_dir() and second.is_dir() and first != second
        assert first.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(monkeypatch, tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", LEAVE_IT], capture_output=True, text=True, env=environment)
    left = Path(killed.stdout.strip())
    assert killed.returncode == -9 and left.is_dir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket_directory() as path:
        assert path.is_dir() and not left.exists()


def test_a_directory_that_its_owner_removes_meanwhile_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [tmp_path / f"{PREFIX}1-1-gone"])
    with socket_directory() as path:
        assert path.is_dir()


def test_only_names_of_dead_owners_are_dead():
    pid, started = os.getpid(), start_time(os.getpid())
    assert owner_lives(f"{PREFIX}{pid}-{started}-abc")
    assert not owner_lives(f"{PREFIX}{pid}-{(started or 0) + 1}-abc")
    assert owner_lives(f"{PREFIX}something else")
