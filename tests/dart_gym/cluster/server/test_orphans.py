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

from dart_gym.cluster.server.orphans import clean_up
from dart_gym.desktops.sandbox import runtime_directory
from dart_gym.utils.processes import start_time

pytestmark = pytest.mark.process

NOBODY = 1 << 30  # larger than any process id


@pytest.fixture(autouse=True)
def base(monkeypatch):
    """A runtime directory of the test's own."""
    base = Path(f"/tmp/dart-leftovers-{os.getpid()}")
    base.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    yield runtime_directory.runtime_dir()
    shutil.rmtree(base)


@pytest.fixture
def dead_desktop(base):
    """The directory of a desktop whose owner was killed."""
    path = runtime_directory.own_directory()
    (path / "home").mkdir()
    owner = (path / "owner").read_text()
    (path / "owner").write_text(owner.replace(str(start_time(os.getpid())), "1"))
    return path


def bind(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    return listener


def test_sockets_of_faces_that_nobody_listens_on_are_removed(tmp_path):
    apis = tmp_path / "apis"
    apis.mkdir()
    deserted, others, own = apis / f"{NOBODY}-1.sock", apis / "mine.sock", apis / f"{os.getpid()}-1.sock"
    busy = apis / f"{NOBODY}-2.sock"
    for path in (deserted, others, own):
        bind(path).close()
    with bind(busy) as listener:
        listener.listen(1)
        assert clean_up([apis, tmp_path / "no such directory"]) == [str(deserted)]
    assert sorted(apis.iterdir()) == sorted([busy, others, own])


def test_processes_of_a_dead_desktop_are_ended(dead_desktop):
    program = [sys.executable, "-c", "print(flush=True); input()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen(program, env=runtime_directory.mark(dead_desktop), **pipes) as left_behind,
        subprocess.Popen(program, env=runtime_directory.mark(dead_desktop.parent), **pipes) as other,
    ):
        for process in (left_behind, other):
            assert process.stdout.readline()
        assert clean_up() == [str(dead_desktop)] and not dead_desktop.exists()
        assert left_behind.wait(5) == -9
        assert other.poll() is None
        other.kill()


@pytest.fixture
def displays(dead_desktop, monkeypatch, tmp_path):
    """A directory with sockets of displays: nobody listens on 7 and 8, somebody on 9."""
    monkeypatch.setattr(runtime_directory, "X_SOCKETS", tmp_path)
    for number in (7, 8):
        bind(tmp_path / f"X{number}").close()
    (dead_desktop / "shared/log").mkdir(parents=True)
    with bind(tmp_path / "X9") as living:
        living.listen(1)
        yield tmp_path


@pytest.mark.parametrize(
    ("number", "left"), [("7", {"X8", "X9"}), ("9", {"X7", "X8", "X9"}), ("../x", {"X7", "X8", "X9"})]
)
def test_the_socket_of_a_killed_display_is_removed(dead_desktop, displays, number, left):
    (dead_desktop / "shared/log" / runtime_directory.DISPLAY_FILE).write_text(number)
    clean_up()
    assert {path.name for path in displays.iterdir()} == left and not dead_desktop.exists()


def test_a_link_in_place_of_the_display_s_number_is_not_followed(dead_desktop, displays):
    (displays / "number").write_text("7")
    (dead_desktop / "shared/log" / runtime_directory.DISPLAY_FILE).symlink_to(displays / "number")
    clean_up()
    assert (displays / "X7").exists() and not dead_desktop.exists()


def test_a_part_that_fails_does_not_keep_the_others_from_cleaning(dead_desktop, caplog):
    def fail() -> list[str]:
        raise OSError("docker does not answer")

    with caplog.at_level(logging.WARNING):
        assert clean_up(cleaners=[fail, lambda: ["container 1"]]) == [str(dead_desktop), "container 1"]
    assert "docker does not answer" in caplog.text
