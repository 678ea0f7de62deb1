import os
import signal
import subprocess
import sys
import time
from collections import deque

import pytest

from dart_gym.processes import start_time
from dart_train.supervisor import ModuleCrashed, ModuleSpec, Supervisor, describe_exit, next_start


def python(name, code, **kwargs):
    return ModuleSpec(name, (sys.executable, "-c", code), **kwargs)


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def test_backoff_doubles_and_gives_up():
    spec = ModuleSpec("m", ("true",), max_crashes=3, crash_window_s=60)
    assert next_start(deque([100.0]), 100.0, spec) == 100.5
    assert next_start(deque([90.0, 100.0]), 100.0, spec) == 101.0
    assert next_start(deque([80.0, 90.0, 100.0]), 100.0, spec) is None
    assert next_start(deque([1.0, 90.0, 100.0]), 100.0, spec) == 101.0  # the first is out of the window


def test_a_module_that_ends_well_is_finished(tmp_path):
    supervisor = Supervisor(tmp_path)
    supervisor.start(python("m", "print('hello')"))
    supervisor.wait("m")
    assert "hello" in (tmp_path / "m.log").read_text()


def test_a_crashed_module_is_restarted(tmp_path):
    supervisor = Supervisor(tmp_path)
    marker = tmp_path / "seen"
    code = f"import pathlib, sys\np = pathlib.Path({str(marker)!r})\nif not p.exists():\n    p.touch(); sys.exit(3)"
    module = supervisor.start(python("m", code))
    supervisor.wait("m")
    assert module.restarts == 1


def test_a_hopeless_module_ends_with_the_end_of_its_log(tmp_path):
    supervisor = Supervisor(tmp_path)
    supervisor.start(python("m", "raise SystemExit('no such port')", max_crashes=2))
    with pytest.raises(ModuleCrashed, match=r"(?s)'m' ended 2 times .*no such port"):
        supervisor.wait("m")


def test_stop_all_kills_what_ignores_sigterm(tmp_path):
    supervisor = Supervisor(tmp_path)
    code = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(7 ** 20, flush=True)\ntime.sleep(60)"
    )
    module = supervisor.start(python("m", code))
    wait_for(lambda: str(7**20) in module.log.read_text())
    process = module.process
    supervisor.stop_all(grace_s=0.2)
    assert process.returncode == -signal.SIGKILL


def test_children_die_with_a_killed_supervisor(tmp_path):
    code = (
        "import sys, time, pathlib\n"
        "from dart_train.supervisor import ModuleSpec, Supervisor\n"
        "supervisor = Supervisor(pathlib.Path(sys.argv[1]))\n"
        "module = supervisor.start(ModuleSpec('m', ('sleep', '60')))\n"
        "print(module.process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with parent.stdout as out:
        child = int(out.readline())
    assert start_time(child) is not None
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_for(lambda: start_time(child) is None)


def test_exit_codes_in_words():
    assert describe_exit(-9) == "signal SIGKILL"
    assert describe_exit(2) == "status 2"
