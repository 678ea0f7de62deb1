"""A module that is told to stop ends at its next good point; the trainer ends at once when its launcher is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.dart_gym.waiting import wait_for

pytestmark = pytest.mark.process

# A trainer in the middle of a long step: it does not look at `stop` until the file says so.
MODULE = """
import os, sys, time
from dart_gym.utils.processes import end_with_parent
from dart_train.core.stop_event import StopEvent
from dart_train.processes.process_context import stop_on_signals
import signal
end_with_parent(signal.SIGTERM)
stop = StopEvent()
stop_on_signals(stop, orphan_exits=sys.argv[2] == "learn")
open(sys.argv[1] + "/pid", "w").write(str(os.getpid()))
while not os.path.exists(sys.argv[1] + "/step-done"):
    time.sleep(0.01)
open(sys.argv[1] + "/stopped", "w").write(str(stop.is_set()))
"""
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"


@pytest.fixture
def launched(tmp_path):
    """Starts a launcher with a module; the launcher's process and the module's number."""
    started = []

    async def start(kind: str) -> tuple[subprocess.Popen[bytes], int]:
        command = [sys.executable, "-c", LAUNCHER, "-c", MODULE, str(tmp_path), kind]
        started.append(subprocess.Popen(command))
        await wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        return started[0], int((tmp_path / "pid").read_text())

    yield start
    (tmp_path / "step-done").touch()
    started[0].kill()
    started[0].wait()


async def test_the_trainer_ends_at_once_with_a_launcher_that_is_killed(launched, tmp_path):
    launcher, module = await launched("learn")
    launcher.kill()
    await wait_for(lambda: not os.path.exists(f"/proc/{module}"))
    assert not (tmp_path / "stopped").exists()


@pytest.mark.parametrize("kind", ["learn", "rollout"])
async def test_what_is_told_to_stop_ends_at_its_next_good_point(launched, tmp_path, kind):
    _, module = await launched(kind)
    os.kill(module, signal.SIGTERM)
    (tmp_path / "step-done").touch()
    await wait_for(lambda: (tmp_path / "stopped").exists() and (tmp_path / "stopped").read_text() == "True")


async def test_other_modules_finish_what_they_do_when_their_launcher_is_killed(launched, tmp_path):
    launcher, module = await launched("rollout")
    launcher.kill()
    launcher.wait()
    (tmp_path / "step-done").touch()
    await wait_for(lambda: (tmp_path / "stopped").exists() and (tmp_path / "stopped").read_text() == "True")
