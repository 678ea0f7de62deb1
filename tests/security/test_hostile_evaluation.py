"""What a metric runs of what an agent left behind has the rights of a desktop's programs, and none of the server's.

In the place of OSWorld's metrics a program looks around in the sandbox of an evaluation, and tells what it finds.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from test_confinement import CALLS, MACHINE

from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.confinement import resource_limits
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.tasks.evaluation import evaluator_worker
from dart_gym.tasks.evaluation.evaluator_environment import EvaluatorEnvironment
from dart_gym.tasks.evaluation.evaluator_worker import EvaluatorWorker
from dart_gym.tasks.evaluation.score_rules import Check

pytestmark = [pytest.mark.security, pytest.mark.desktop]

ANSWERS = """
import json, os, subprocess, sys
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "load":
        print("{}", flush=True)
        continue
    program = request["result"]["program"]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    print(json.dumps({"score": 1.0, "state": done.stdout or done.stderr}), flush=True)
"""
REACHES = """
import json, os, socket
def reached(port):
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
        return True
    except OSError:
        return False
shown = [os.path.join(top, name) for top, _, names in os.walk("/etc") for name in names]
print(json.dumps({
    "uid": os.getuid(), "ports": [port for port in (PORTS) if reached(port)], "home": os.path.exists("/root/.bashrc"),
    "secrets": [path for path in shown if os.path.basename(path) in ("shadow", "gshadow", "sudoers", "hostname")],
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]), "environment": sorted(os.environ),
}))
"""


@pytest.fixture
async def told(tmp_path, monkeypatch):
    """Runs a program in the sandbox of an evaluation; what it prints as JSON."""
    (tmp_path / "main.py").write_text(ANSWERS)
    (tmp_path / "cache").mkdir()
    (tmp_path / "root/bin").mkdir(parents=True)
    (tmp_path / "root/bin/python").symlink_to("/usr/bin/python3")
    monkeypatch.setattr(evaluator_worker, "WORKER_PROGRAM", tmp_path / "main.py")
    desktop = FakeDesktop(DesktopSpec())
    await desktop.start()
    environment = EvaluatorEnvironment(tmp_path / "root", Path("/usr"))
    async with EvaluatorWorker(desktop, environment, tmp_path / "cache") as worker:
        await worker.start([Check("looks", {"type": "rule"})])

        async def run(program: str) -> dict[str, object]:
            return json.loads((await worker.check(Check("looks", {"type": "rule", "program": program}), "and"))[1])

        run.worker = worker
        yield run
    await desktop.stop()


async def test_nothing_of_the_kernel_can_be_set_and_nothing_mounted(told):
    found = await told(MACHINE)
    assert found["writable"] == [] and found["mounted"] == [] and not found["sys"] and found["places"] == []
    assert set(found["capabilities"]) == {"0000000000000000"}
    assert found["no new rights"] == "1" and found["filter"] == "2"


async def test_calls_that_no_application_needs_are_refused(told):
    answers = await told(CALLS)
    assert "done" not in answers.values(), answers


async def test_the_machine_s_files_programs_and_network_are_not_reached(told):
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        found = await told(REACHES.replace("PORTS", f"{port},"))
    assert found["ports"] == [] and found["secrets"] == [] and not found["home"] and found["uid"] == 1000
    assert found["processes"] < 8, "its own alone"
    assert set(found["environment"]) <= {
        *evaluator_worker.worker_variables("/tmp"),
        "PWD",
        "LC_CTYPE",
        "SHLVL",
        "_",
        "OLDPWD",
    }


async def test_a_server_of_root_is_not_the_user_of_its_evaluations(told):
    await told("print(1)")  # so that it runs
    pid = told.worker._process.pid
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert set(status["Uid"].split()) & {"0"} == set()
    groups = Path(f"/proc/{pid}/cgroup").read_text()
    assert ("dart-evaluation." in groups) == bool(resource_limits.group_places())
