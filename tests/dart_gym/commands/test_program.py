"""What the three command lines share: one line for each error, exit statuses, waits that are said."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import sys
import time

import pytest

from dart_gym.commands.program import guarded, one_line
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils import waits

PROGRAMS = ("dart_gym.commands.gym_cli", "dart_agent.commands.agent_cli", "dart_train.commands.train_cli")


def ended(error: BaseException, capsys, monkeypatch, *arguments: str) -> tuple[int, str]:
    def fail() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["x", *arguments])
    with pytest.raises(SystemExit) as caught:
        guarded("x", fail)
    return int(caught.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ConfigurationError("the key is wrong"), "the key is wrong"),
        (OSError(errno.ENOSPC, "No space left on device", "/d"), "/d"),
        (PermissionError(errno.EACCES, "Permission denied", "/d"), "rights"),
        (ModuleNotFoundError("no", name="sqlalchemy.orm"), "dart-gui[train]"),
        (ModuleNotFoundError("no", name="mcp"), "dart-gui[mcp]"),
        (ModuleNotFoundError("no", name="somebodys"), "pip install somebodys"),
        (ExceptionGroup("g", [ExceptionGroup("h", [ValueError("a\nb")])]), "ValueError"),
        (KeyError("x"), "--debug"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_one_line(error, says, capsys, monkeypatch):
    status, said = ended(error, capsys, monkeypatch)
    assert status == 1 and says in said and said.count("\n") == 1 and "Traceback" not in said


@pytest.mark.parametrize("kind", [ConfigurationError, ValueError])
def test_an_error_that_quotes_others_moves_no_cursor(kind, capsys, monkeypatch):
    _, said = ended(kind("unknown task '\x1b[2J\x1b]0;title\x07\u202etxt'"), capsys, monkeypatch)
    assert "\x1b" not in said and "\u202e" not in said and "\\x1b[2J" in said


def test_a_traceback_is_printed_when_it_is_asked_for(capsys, monkeypatch):
    assert "Traceback" in ended(KeyError("x"), capsys, monkeypatch, "run", "--debug")[1]


def test_ctrl_c_has_its_status(capsys, monkeypatch):
    assert ended(KeyboardInterrupt(), capsys, monkeypatch)[0] == 130


def test_an_object_that_cannot_be_shown_does_not_hide_the_error():
    assert "OSError" in one_line(OSError("only text"))


def test_long_waits_are_said_once_and_then_more_rarely():
    wait = waits.Wait("an answer of http://h", 60.0, since=100.0)
    again = waits.Wait("an answer of http://h", 60.0, since=105.0)
    assert waits.due([wait, again], 109.0) == []
    [line] = waits.due([wait, again], 111.0)
    assert "an answer of http://h" in line and "11 s" in line and "60 s" in line
    assert waits.due([wait], 115.0) == [] and len(waits.due([wait], 123.0)) == 1


def test_retries_are_said_but_not_each_of_them():
    said: list[str] = []
    with waits.said(said.append):
        for _ in range(5):
            waits.retrying("http://h answered 429: busy", 0.5)
        waits.retrying("something else", 0.5)
    waits.retrying("nobody listens", 0.5)
    assert len(said) == 2 and "429" in said[0]


def test_a_wait_that_hangs_reaches_the_listener(monkeypatch):
    monkeypatch.setattr(waits, "LOOK_S", 0.01)
    said: list[str] = []
    with waits.said(said.append), waits.waiting_for("the moon"):
        next(iter(waits.running.values())).since -= 20.0
        deadline = time.monotonic() + 20
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "the moon" in said[0]


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_and_a_closed_pipe_are_no_tracebacks(unbuffered, monkeypatch):
    """Also where all is in a buffer until the interpreter ends, as it is for people."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = f"{sys.executable} -c 'from dart_gym.commands.gym_cli import app; app()' tasks list"
    full = subprocess.run(["bash", "-c", f"{command} > /dev/full"], capture_output=True, text=True, timeout=100)
    assert full.returncode == 1 and full.stderr.count("\n") == 1
    assert "cannot write to standard output: No space left on device" in full.stderr
    closed = subprocess.run(["bash", "-c", f"{command} | head -1"], capture_output=True, text=True, timeout=100)
    assert closed.stdout.count("\n") == 1 and closed.stderr == ""
    gone = subprocess.run(["bash", "-c", f"{command} | true; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True)
    assert gone.stdout == "1\n" and gone.stderr == ""
    none = subprocess.run(["bash", "-c", f"{command} >&-"], capture_output=True, text=True, timeout=100)
    assert none.returncode in (0, 1) and none.stderr.count("\n") <= 1 and "unexpected" not in none.stderr


def test_a_broken_pipe_of_something_else_is_said(capsys, monkeypatch):
    status, said = ended(BrokenPipeError(errno.EPIPE, "Broken pipe"), capsys, monkeypatch)
    assert status == 1 and "Broken pipe" in said


def test_many_waits_of_a_kind_are_one_line(monkeypatch):
    monkeypatch.setattr(waits, "LOOK_S", 0.01)
    said: list[str] = []
    with waits.said(said.append, rest_s=60.0), contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(waits.waiting_for("an answer of http://h"))
        stack.enter_context(waits.waiting_for("the moon"))
        for number, wait in enumerate(waits.running.values()):
            wait.since -= 20.0 + number
        deadline = time.monotonic() + 20
        while len(said) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        for wait in waits.running.values():
            wait.since -= 400.0
        stack.enter_context(waits.waiting_for("the sun"))
        next(reversed(waits.running.values())).since -= 20.0
        while len(said) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert sorted(line.split(" for ")[1] for line in said) == ["an answer of http://h", "the moon", "the sun"]
