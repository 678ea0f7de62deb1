"""`integrations/harbor`: exported tasks by Harbor's own loader and runner, in the sandbox of bubblewrap.

Harbor is in an environment of its own (`.venv-hubs-harbor`): it wants other packages than ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.hubs.conftest import ROOT

pytestmark = [pytest.mark.hubs, pytest.mark.timeout(240)]
HARBOR = ROOT / ".venv-hubs-harbor/bin"
ENVIRON = {**os.environ, "HARBOR_TELEMETRY": "off"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The tasks of the suite "fake", as the command exports them."""
    root = tmp_path_factory.mktemp("exported")
    subprocess.run([sys.executable, "-m", "dart_gym_harbor", str(root), "fake"], check=True, cwd=root)
    return root


def job(tasks: Path, jobs: Path, agent: str) -> list[str]:
    sandbox = ["-e", "dart_gym_harbor_sandbox:BubblewrapEnvironment", "--ek", f"python={sys.executable}"]
    return [str(HARBOR / "harbor"), "run", "-p", str(tasks), "-a", agent, *sandbox, "-o", str(jobs), "-n", "2", "-y"]


@pytest.fixture
def run(tmp_path):
    """Runs Harbor with one of its agents on a folder of tasks; the trials' results, by the task's name."""

    def play(tasks: Path, agent: str = "oracle") -> dict[str, dict]:
        jobs = tmp_path / f"jobs-{agent}"
        subprocess.run(job(tasks, jobs, agent), check=True, env=ENVIRON, stdout=subprocess.DEVNULL)
        trials = [json.loads(path.read_text()) for path in jobs.glob("*/*/result.json")]
        return {trial["task_name"].split("/")[-1]: trial | {"folder": Path(trial["trial_uri"][7:])} for trial in trials}

    return play


@pytest.fixture
def solved_by(exported, tmp_path):
    """A folder with one exported task, whose solution is another program."""

    def made(program: str, **files: str) -> Path:
        task = tmp_path / "tasks" / "fake-two-steps-0"
        subprocess.run(["cp", "-r", str(exported / task.name), str(task)], check=True)
        (task / "solution/solve.sh").write_text(f"#!/bin/bash\n{program}\n")
        for name, text in files.items():
            (task / "solution" / f"{name}.py").write_text(text)
        return task.parent

    (tmp_path / "tasks").mkdir()
    return made


def test_harbors_own_loader_takes_the_tasks(exported):
    program = """
import json, sys
from pathlib import Path
from harbor.models.task.task import Task
for path in sorted(Path(sys.argv[1]).iterdir()):
    assert Task.is_valid_dir(path)
    task = Task(path)
    print(json.dumps([task.name, task.instruction, task.config.environment.network_mode]))
"""
    done = subprocess.run([HARBOR / "python", "-c", program, exported], capture_output=True, text=True, check=True)
    tasks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in tasks] == ["dart-gym/fake-click-button-0", "dart-gym/fake-two-steps-0"]
    assert all(text.startswith("Click the ") and mode == "no-network" for _, text, mode in tasks)


def test_harbors_oracle_scores_1_and_its_agent_that_does_nothing_0_two_at_once(exported, run):
    for agent, expected in (("oracle", 1.0), ("nop", 0.0)):
        trials = run(exported, agent)
        assert len(trials) == 2
        assert {trial["verifier_result"]["rewards"]["reward"] for trial in trials.values()} == {expected}


LOOK = """
import json, pathlib, subprocess
import seeing_oracle

def desktop(*words):
    return json.loads(subprocess.run(["desktop", *words], check=True, capture_output=True).stdout)

for step in range(2):
    told = desktop("screenshot", "/tmp/screen.png")
    x, y = seeing_oracle.target(told["instruction"], pathlib.Path("/tmp/screen.png").read_bytes(), step)
    told = desktop("act", json.dumps({"kind": "click", "x": x, "y": y}))
assert told["ended"]
"""


def test_an_agent_that_looks_and_clicks_scores_1(solved_by, run):
    oracle = (ROOT / "tests/hubs/seeing_oracle.py").read_text()
    (trial,) = run(solved_by("cd /solution && python3 look.py", look=LOOK, seeing_oracle=oracle)).values()
    assert trial["verifier_result"]["rewards"]["reward"] == 1.0, (trial["folder"] / "agent/oracle.txt").read_text()


def test_a_lost_desktop_is_an_exception_of_harbors_without_a_reward(solved_by, run):
    (trial,) = run(solved_by("pkill -f 'desktop hold'")).values()
    assert trial["exception_info"]["exception_type"] == "RewardFileNotFoundError"
    assert not trial["verifier_result"]


def test_an_agent_gets_neither_the_score_nor_this_machine(solved_by, run):
    nosy = f"""
echo wrong >/tmp/key; desktop score --key /tmp/key
desktop act '{{"kind": "shell", "command": "true"}}'
cat /etc/shadow; ls {ROOT}/tests; ls /root/.ssh; ls /tests; echo x >/usr/bin/x
(exec 3<>/dev/tcp/127.0.0.1/22) || echo no network
"""
    (trial,) = run(solved_by(nosy)).values()
    told = (trial["folder"] / "agent/oracle.txt").read_text()
    assert "that is for the solution and the verifier" in told and "shell" in told
    for place in ("/etc/shadow", f"{ROOT}/tests", "/root/.ssh"):
        assert f"{place}': No such file" in told or f"{place}: No such file" in told
    assert "Read-only file system" in told and "no network" in told
    assert trial["verifier_result"]["rewards"]["reward"] == 0.0


def running(text: str) -> bool:
    """Whether a process has a text in its command line."""
    return any(text in " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


async def test_nothing_is_left_of_a_killed_run(solved_by, tmp_path, until):
    tasks = solved_by("sleep infinity")
    key_hash = (tasks / "fake-two-steps-0/task.toml").read_text().partition("--key-hash ")[2][:64]
    options = {"env": ENVIRON, "stdout": asyncio.subprocess.DEVNULL}
    harbor = await asyncio.create_subprocess_exec(*job(tasks, tmp_path / "jobs", "oracle"), **options)
    await until(lambda: running(key_hash), 100)
    harbor.kill()
    await harbor.wait()
    await until(lambda: not running(key_hash))


def test_an_unknown_task_is_one_line(tmp_path):
    command = [sys.executable, "-m", "dart_gym_harbor", str(tmp_path), "fake/no-such"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "no-such" in done.stderr and done.stderr.count("\n") == 1


def test_a_task_that_cannot_run_is_one_error_that_says_why(osworld, tmp_path):
    command = [sys.executable, "-m", "dart_gym_harbor", str(tmp_path), "osworld/absent"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "absent-program" in done.stderr


def test_without_harbor_the_import_says_what_to_install(without):
    said = without("harbor", "integrations/harbor", "dart_gym_harbor_sandbox")
    assert "Harbor is not installed; next step: pip install 'harbor>=0.24,<0.25' (Python 3.12)" in said
