import errno
import json
import subprocess
import sys

import pytest

from dart_train.rundir import RunDirectory, RunDirectoryError, RunLock, RunState, explain_os_error, write_json


def make(tmp_path):
    run = RunDirectory(tmp_path / "r")
    run.create()
    return run


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
        "from dart_train.rundir import RunDirectory, RunLock\n"
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


def test_write_json_replaces_whole_files(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_json(path, {"x": 1})
    write_json(path, {"x": 2})
    assert json.loads(path.read_text()) == {"x": 2}
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]


def test_full_disk_is_explained(tmp_path):
    error = explain_os_error(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    assert "disk is full" in str(error)
    assert "goes on where it was" in str(error)
