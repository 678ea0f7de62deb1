import functools
import os
import signal
import subprocess
import sys
from collections import deque

import pytest

from dart_gym.cluster.client.server_health import Health, look_at
from dart_gym.utils.processes import HOPELESS_STATUS, start_time
from dart_train.run.supervisor import ProcessCrashed, ProcessSpec, Supervisor, describe_exit, last_error, next_start
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.process


def python(name, code, **kwargs):
    return ProcessSpec(name, (sys.executable, "-c", code), **kwargs)


def test_backoff_doubles_and_gives_up():
    spec = ProcessSpec("m", ("true",), max_crashes=3, crash_window_s=60)
    assert next_start(deque([100.0]), 100.0, spec) == 100.5
    assert next_start(deque([90.0, 100.0]), 100.0, spec) == 101.0
    assert next_start(deque([80.0, 90.0, 100.0]), 100.0, spec) is None
    assert next_start(deque([1.0, 90.0, 100.0]), 100.0, spec) == 101.0  # the first is out of the window


def test_a_process_that_ends_well_is_finished(tmp_path):
    supervisor = Supervisor(tmp_path)
    supervisor.start(python("m", "print('hello')"))
    supervisor.wait("m")
    assert "hello" in (tmp_path / "m.log").read_text()


def test_a_crashed_process_is_restarted(tmp_path):
    supervisor = Supervisor(tmp_path)
    marker = tmp_path / "seen"
    code = f"import pathlib, sys\np = pathlib.Path({str(marker)!r})\nif not p.exists():\n    p.touch(); sys.exit(3)"
    watched = supervisor.start(python("m", code))
    supervisor.wait("m")
    assert watched.restarts == 1


def test_a_hopeless_process_ends_with_the_end_of_its_log(tmp_path):
    supervisor = Supervisor(tmp_path)
    supervisor.start(python("m", "raise SystemExit('no such port')", max_crashes=2))
    with pytest.raises(ProcessCrashed, match=r"(?s)'m' ended with status 1, 2 times.*no such port"):
        supervisor.wait("m")


def test_an_error_that_a_restart_cannot_mend_is_final_at_once(tmp_path):
    supervisor = Supervisor(tmp_path)
    code = "import sys; print('chatter'); print('error: no such task [x]\\n  it is gone'); sys.exit(78)"
    watched = supervisor.start(python("m", code))
    with pytest.raises(ProcessCrashed) as caught:
        supervisor.wait("m")
    assert str(caught.value).startswith("no such task [x]\n  it is gone\n(process 'm' ended with status 78;")
    assert str(watched.log) in str(caught.value) and watched.restarts == 0


def test_processes_know_that_they_are_supervised(tmp_path):
    supervisor = Supervisor(tmp_path)
    code = (
        "from dart_gym.utils.processes import exit_status; "
        "print(exit_status(hopeless=True), exit_status(hopeless=False))"
    )
    watched = supervisor.start(python("m", code))
    supervisor.wait("m")
    assert watched.log.read_text().splitlines()[-1] == "78 1"


def test_errors_count_longer_than_crashes(tmp_path):
    spec = python("m", "import sys; sys.exit('error: nobody answers')", max_crashes=2, crash_window_s=1e-6)
    supervisor = Supervisor(tmp_path)
    supervisor.start(spec)
    with pytest.raises(ProcessCrashed, match="^nobody answers\n"):
        supervisor.wait("m")


def test_a_service_that_ends_is_started_again(tmp_path):
    supervisor = Supervisor(tmp_path)
    watched = supervisor.start(python("m", "pass", service=True))

    def restarted() -> int:
        supervisor.check()
        return watched.restarts

    wait_until(restarted, 20, trouble=lambda: watched.finished)
    supervisor.stop_all()


def test_a_process_that_ends_on_a_full_disk_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("dart_train.run.supervisor.disk_is_full", lambda path: True)
    supervisor = Supervisor(tmp_path, unavailable_timeout_s=0.0)
    supervisor.start(python("m", "raise SystemExit(1)"))
    with pytest.raises(ProcessCrashed, match="no space is left on the device"):
        supervisor.wait("m")


def test_a_process_that_ends_on_a_full_disk_starts_again_when_there_is_space(tmp_path, monkeypatch):
    full = [True]
    monkeypatch.setattr("dart_train.run.supervisor.disk_is_full", lambda path: full[0])
    supervisor = Supervisor(tmp_path)
    ends = f"import os, sys; sys.exit({HOPELESS_STATUS} if not os.path.exists({str(tmp_path / 'space')!r}) else 0)"
    watched = supervisor.start(python("m", ends))

    def restarted() -> int:
        supervisor.check()
        return watched.restarts

    wait_until(restarted, 20, trouble=lambda: watched.finished)
    assert supervisor.disk.away and not watched.crashes, "it is no crash of its own"
    full[0] = False
    (tmp_path / "space").touch()
    supervisor.wait("m")
    assert watched.finished and not supervisor.disk.away


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("", ""),
        ("starting\nTraceback\nKeyError: 'error: x'", ""),
        ("a\nerror: one\nb\nerror: two\n  more", "two\n  more"),
        ("dart-gym: port in use", "port in use"),
    ],
)
def test_last_error(log, message):
    assert last_error(log) == message


def test_stop_all_kills_what_ignores_sigterm(tmp_path):
    supervisor = Supervisor(tmp_path)
    code = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(7 ** 20, flush=True)\ntime.sleep(60)"
    )
    watched = supervisor.start(python("m", code))
    wait_until(lambda: str(7**20) in watched.log.read_text())
    process = watched.process
    supervisor.stop_all(grace_s=0.2)
    assert process.returncode == -signal.SIGKILL


def test_children_die_with_a_killed_supervisor(tmp_path):
    code = (
        "import sys, time, pathlib\n"
        "from dart_train.run.supervisor import ProcessSpec, Supervisor\n"
        "supervisor = Supervisor(pathlib.Path(sys.argv[1]))\n"
        "watched = supervisor.start(ProcessSpec('m', ('sleep', '60')))\n"
        "print(watched.process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with parent.stdout as out:
        child = int(out.readline())
    assert start_time(child) is not None
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_until(lambda: start_time(child) is None)


def test_exit_codes_in_words():
    assert describe_exit(-9) == "signal SIGKILL"
    assert describe_exit(2) == "status 2"


SERVES = """
import http.server, os, socketserver, sys
class Server(socketserver.UnixStreamServer):
    allow_reuse_address = True
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
if os.path.exists(sys.argv[1]):
    os.unlink(sys.argv[1])
Server(sys.argv[1], Handler).serve_forever()
"""


def test_a_process_that_lives_but_does_not_answer_is_replaced(tmp_path):
    path = tmp_path / "sock"
    look = functools.partial(look_at, path, 0.2)
    spec = ProcessSpec(
        "m", (sys.executable, "-c", SERVES, str(path)), service=True, look=look, look_period_s=0.05, max_crashes=3
    )
    supervisor = Supervisor(tmp_path)
    watched = supervisor.start(spec)
    wait_until(lambda: look() is Health.ANSWERS)
    first = watched.process.pid
    time_of_probe = watched.probe
    os.kill(first, signal.SIGSTOP)

    def replaced():
        supervisor.check()
        return watched.running and watched.process.pid != first and look() is Health.ANSWERS

    wait_until(replaced, 30)
    assert watched.restarts == 1 and watched.probe is not time_of_probe
    assert "does not answer any more, and is killed" in watched.log.read_text()
    supervisor.stop_all()
