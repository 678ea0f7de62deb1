"""What a killed server left behind is found; what belongs to a living one is not touched."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dart_gym.cluster.janitor import clean_up
from dart_gym.desktops import runtime
from dart_gym.processes import start_time

NOBODY = 1 << 30  # larger than any process id


@pytest.fixture(autouse=True)
def base(monkeypatch):
    """A runtime directory of the test's own."""
    base = Path(f"/tmp/dart-janitor-{os.getpid()}")
    base.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    yield runtime.runtime_dir()
    shutil.rmtree(base)


@pytest.fixture
def dead_desktop(base):
    """The directory of a desktop whose owner was killed."""
    path = runtime.own_directory()
    (path / "home").mkdir()
    owner = (path / "owner").read_text()
    (path / "owner").write_text(owner.replace(str(start_time(os.getpid())), "1"))
    return path


def bind(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    return listener


def test_sockets_of_faces_that_nobody_listens_on_are_removed(tmp_path):
    faces = tmp_path / "faces"
    faces.mkdir()
    deserted, others, own = faces / f"{NOBODY}-1.sock", faces / "mine.sock", faces / f"{os.getpid()}-1.sock"
    busy = faces / f"{NOBODY}-2.sock"
    for path in (deserted, others, own):
        bind(path).close()
    with bind(busy) as listener:
        listener.listen(1)
        assert clean_up([faces, tmp_path / "no such directory"]) == [str(deserted)]
    assert sorted(faces.iterdir()) == sorted([busy, others, own])


def test_processes_of_a_dead_desktop_are_ended(dead_desktop):
    program = [sys.executable, "-c", "print(flush=True); input()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen(program, env={"HOME": str(dead_desktop / "home")}, **pipes) as left_behind,
        subprocess.Popen(program, env={"HOME": str(dead_desktop.parent)}, **pipes) as other,
    ):
        for process in (left_behind, other):
            assert process.stdout.readline()
        assert clean_up() == [str(dead_desktop)] and not dead_desktop.exists()
        assert left_behind.wait(5) == -9
        assert other.poll() is None
        other.kill()


def test_the_lock_of_a_killed_display_is_removed_and_those_of_others_are_not(dead_desktop, monkeypatch, tmp_path):
    monkeypatch.setattr(runtime, "_X_LOCKS", tmp_path)
    (tmp_path / ".X11-unix").mkdir()
    for number, pid in ((7, NOBODY), (8, NOBODY - 1), (9, os.getpid())):
        (tmp_path / f".X{number}-lock").write_text(f"{pid:>10}\n")
        (tmp_path / ".X11-unix" / f"X{number}").touch()
    (dead_desktop / "shared/log").mkdir(parents=True)
    (dead_desktop / "shared/log" / runtime.DISPLAY_PID_FILE).write_text(str(NOBODY))
    clean_up()
    assert {path.name for path in tmp_path.glob(".X*-lock")} == {".X8-lock", ".X9-lock"}
    assert {path.name for path in (tmp_path / ".X11-unix").iterdir()} == {"X8", "X9"}


def test_a_link_in_place_of_the_display_s_number_is_not_followed(dead_desktop, monkeypatch, tmp_path):
    monkeypatch.setattr(runtime, "_X_LOCKS", tmp_path)
    (tmp_path / ".X7-lock").write_text(f"{NOBODY}\n")
    (tmp_path / "number").write_text(str(NOBODY))
    (dead_desktop / "shared/log").mkdir(parents=True)
    (dead_desktop / "shared/log" / runtime.DISPLAY_PID_FILE).symlink_to(tmp_path / "number")
    clean_up()
    assert (tmp_path / ".X7-lock").exists() and not dead_desktop.exists()


def test_a_part_that_fails_does_not_keep_the_others_from_cleaning(dead_desktop, caplog):
    def fail() -> list[str]:
        raise OSError("docker does not answer")

    with caplog.at_level(logging.WARNING):
        assert clean_up(cleaners=[fail, lambda: ["container 1"]]) == [str(dead_desktop), "container 1"]
    assert "docker does not answer" in caplog.text
