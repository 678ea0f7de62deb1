import errno
import json
import os
import signal
import subprocess
import sys

import pytest

from dart_gym.utils.processes import start_time
from dart_train.core.package_version import VERSION
from dart_train.run.run_directory import (
    RunDirectory,
    RunDirectoryError,
    RunLock,
    RunState,
    explain_os_error,
    write_json,
)


def make(tmp_path):
    run = RunDirectory(tmp_path / "r")
    run.create()
    return run


def test_a_directory_says_which_version_began_it_and_others_refuse_it(tmp_path):
    run = make(tmp_path)
    assert json.loads((run.root / "run.json").read_text()) == {"version": VERSION}
    run.create()  # goes on
    for written in ("0.1.0", "0.3.1", "1.2.0"):
        write_json(run.root / "run.json", {"version": written})
        with pytest.raises(RunDirectoryError, match=f"written by version {written} of this .*another --name"):
            run.create()
    write_json(run.root / "run.json", {"version": f"{VERSION}.post1"})
    run.create()
    (run.root / "run.json").write_text("{")
    with pytest.raises(RunDirectoryError, match="is damaged .* remove .* to start this run afresh"):
        run.create()


@pytest.mark.parametrize("left", ["config.yaml", "state.json"])
def test_a_directory_of_the_first_version_is_refused(tmp_path, left):
    old = RunDirectory(tmp_path / "old")
    old.root.mkdir()
    (old.root / left).write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"was written by version 0\.1\.0 of this package, .* go on with that"):
        old.create()
    assert [path.name for path in old.root.iterdir()] == [left], "nothing was touched"


def test_state_survives_and_counts_only_time_spent(tmp_path):
    path = tmp_path / "state.json"
    state = RunState(path)
    state.begin("rl")
    state.values["phases"]["rl"]["spans"] = [[0.0, 10.0], [100.0, None]]
    state.save()
    again = RunState(path)
    assert not again.finished("rl")
    assert again.seconds("rl") == 10.0
    again.begin("rl")
    again.finish("rl", version=3)
    assert RunState(path).finished("rl")
    assert RunState(path).fact("rl", "version") == 3


@pytest.mark.parametrize("text", ["{", "[]", '{"phases": {}}', ""])
def test_damaged_state_says_what_to_do(tmp_path, text):
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(RunDirectoryError, match="remove .* to start this run afresh"):
        RunState(path)


def test_second_launcher_is_refused_and_a_killed_one_leaves_no_lock(tmp_path):
    run = make(tmp_path)
    code = (
        "import sys, pathlib\n"
        "from dart_train.run.run_directory import RunDirectory, RunLock\n"
        "with RunLock(RunDirectory(pathlib.Path(sys.argv[1]))):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(run.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "held\n"
    with pytest.raises(RunDirectoryError, match=f"in use by process {child.pid}"), RunLock(run):
        pass
    child.kill()
    child.communicate()
    with RunLock(run):
        pass
    assert not (run.root / "run.lock").exists()


ORPHANED = """
import os, pathlib, signal, subprocess, sys
from dart_train.run.run_directory import RunDirectory, RunLock
with RunLock(RunDirectory(pathlib.Path(sys.argv[1]))) as lock:
    process = subprocess.Popen(["sleep", "600"], pass_fds=[lock.fileno()], stdout=subprocess.DEVNULL)
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def orphaned_process(run) -> int:
    """Process id of a process whose launcher was killed, and which has not ended yet."""
    command = [sys.executable, "-c", ORPHANED, str(run.root)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert said.returncode == -signal.SIGKILL
    return int(said.stdout)


def test_the_lock_of_a_killed_launcher_is_free_once_its_processes_have_ended(tmp_path, caplog):
    run = make(tmp_path)
    pid = orphaned_process(run)

    def end_it(record):
        os.kill(pid, signal.SIGTERM)
        return True

    caplog.handler.addFilter(end_it)  # the process ends only after the next launcher has said that it waits for it
    try:
        with RunLock(run):
            assert start_time(pid) is None
    finally:
        caplog.handler.removeFilter(end_it)
    assert f"waiting for its processes to end ([{pid}])" in caplog.text


def test_processes_that_outstay_their_killed_launcher_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("dart_train.run.run_directory.MODULES_END_S", 0.1)
    run = make(tmp_path)
    pid = orphaned_process(run)
    with RunLock(run):
        assert start_time(pid) is None


def test_write_json_replaces_whole_files(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_json(path, {"x": 1})
    write_json(path, {"x": 2})
    assert json.loads(path.read_text()) == {"x": 2}
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]


def test_full_disk_is_explained(tmp_path):
    error = explain_os_error(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    assert "disk is full" in str(error)
    assert "to resume the run" in str(error)
