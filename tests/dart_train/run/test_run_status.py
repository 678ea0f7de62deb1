"""`dart-train status` and `stop`: what they say of a run, from its directory."""

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from dart_gym.utils.processes import start_time
from dart_train.commands.train_cli import app
from dart_train.run.run_directory import RunDirectory, RunDirectoryError, RunState
from dart_train.run.run_status import launcher, log, status, stop, write_processes
from dart_train.run.supervisor import Supervisor, python_process
from tests.helpers.waiting import wait_until


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    run = RunDirectory(tmp_path / "mine")
    run.create()
    run.config.write_text("name: mine\n")
    state = RunState(run.root / "state.json")
    state.begin("prepare")
    state.finish("prepare")
    state.begin("rl")
    (run.logs / "rollout.log").write_text("".join(f"line {number}\n" for number in range(100)))
    return run


def lock(run: RunDirectory, pid: int) -> None:
    (run.root / "run.lock").write_text(f"{pid} {start_time(pid)}")


@pytest.mark.process
def test_a_run_says_its_phase_its_processes_and_what_waits(run):
    lock(run, os.getpid())
    supervisor = Supervisor(run.logs)
    supervisor.start(python_process("rollout", "http.server", "0"))
    try:
        write_processes(run, [supervisor], ["learn waits for a node with {GPU: 8} free since 14:02:11"])
        said = status(run).splitlines()
    finally:
        supervisor.stop_all()
    assert said == [
        "mine: running, in rl (done: prepare)",
        "  rollout: runs",
        "  learn waits for a node with {GPU: 8} free since 14:02:11",
    ]


def test_raised_alarms_are_named(run):
    (run.root / "metrics").mkdir(exist_ok=True)
    run.metrics("trainer").write_text('{"t": 1, "alarm/signal": 1.0}\n{"t": 2, "alarm/engine_gap": 1.0}\n')
    said = status(run)
    assert "alarm engine_gap" in said and "dart-train parity" in said
    assert "alarm signal" not in said  # which is over


def test_forks_teacher_and_judges_are_counted_over_all_lives(run):
    def row(actions: int, **more) -> str:
        return json.dumps({"t": 1.0, "actions": actions, **more}) + "\n"

    def life(forks: int, given_up: dict[str, int], away: str) -> dict[str, object]:
        judge = {"judged": 20, "yes": 20, "wrong": 18}
        return {
            "forks": forks, "forks_given_up": given_up, "teacher": {"steps": 5, "untaught": 2, "away": away},
            "judges": {"eager": judge, "odd": {"nonsense": 20}},
        }  # fmt: skip

    run.metrics("rollout").parent.mkdir(exist_ok=True)
    first, second = life(4, {"a": 1}, ""), life(3, {"a": 1, "b": 1}, "the teacher is away for 3 s: gone")
    run.metrics("rollout").write_text(row(2) + row(90, **first) + row(10) + row(40, **second))
    assert status(run).splitlines()[1:-1] == [
        "  forks: 7; 3 given up, since a replay came out differently: a (2), b (1)",
        "  teacher: 10 steps taught, 4 episodes not; the teacher is away for 3 s: gone; training goes on without it",
        "  judge eager: 40 episodes judged, 40 of them as a success; it has called all 40 episodes a success, 36 of "
        "which the evaluators call a failure: it tells nothing",
        "  judge odd: 0 episodes judged, 0 of them as a success; 40 answers were no judgement; it gives no judgement "
        "of 100% of the episodes",
    ]
    run.metrics("rollout").write_text(row(2) + row(90))
    assert len(status(run).splitlines()) == 2


def test_a_run_whose_launcher_has_ended_is_not_running(run):
    (run.root / "run.lock").write_text("1 1")  # process 1 began at another time
    assert launcher(run) is None
    assert status(run).splitlines() == [
        "mine: not running (done: prepare)",
        "  the command that began it resumes it",
    ]
    assert stop(run) == "mine is not running"


@pytest.mark.process
def test_stop_tells_the_launcher(run):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        lock(run, process.pid)
        assert "the same command resumes it" in stop(run)
        wait_until(lambda: process.poll() is not None, 20)
        assert process.returncode == -signal.SIGTERM


def test_a_log_is_shown_from_its_end(run):
    assert log(run, "rollout", 2) == "line 98\nline 99"
    with pytest.raises(RunDirectoryError, match="no log of 'learn'; there are: rollout"):
        log(run, "learn")


def test_a_run_that_is_not_there_is_named_with_those_that_are(run):
    answer = CliRunner().invoke(app, ["status", "other", "--runs-dir", str(run.root.parent)])
    assert isinstance(answer.exception, RunDirectoryError) and "there are: mine" in str(answer.exception)
    shown = CliRunner().invoke(
        app, ["status", "mine", "--log", "rollout", "--lines", "1", "--runs-dir", str(run.root.parent)]
    )
    assert shown.stdout == "line 99\n"
