from __future__ import annotations

import os
import subprocess
import sys

from dart_gym.utils.processes import has_ended, own_pid_namespace, start_time


def test_a_process_has_ended_once_its_pid_is_nobodys_or_somebody_elses():
    pid, here = os.getpid(), own_pid_namespace()
    started = start_time(pid)
    assert not has_ended(pid, started) and not has_ended(pid, started, here)
    assert has_ended(pid, started + 1), "another process has its pid now"
    assert not has_ended(pid, started + 1, "pid:[0]"), "of processes elsewhere nobody can tell"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    began = start_time(child.pid)
    assert not has_ended(child.pid, began)
    child.kill()
    child.wait()
    assert has_ended(child.pid, began)
