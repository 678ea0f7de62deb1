"""The whole of `dart-train run`, as a user starts it: all modules as processes, on drawn desktops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dart_gym.utils.processes import die_with_parent
from dart_train.core.metrics_log import read_metrics
from tests.helpers.waiting import wait_until

CONFIG = Path(__file__).parent / "e2e.yaml"
REPORT_KEYS = {
    "success_before", "success_before_ci_low", "success_before_ci_high",
    "success_after", "success_after_ci_low", "success_after_ci_high",
    "wall_s", "rl_wall_s", "env_utilisation", "rollout_utilisation", "actions_per_min", "staleness_mean",
    "dropped_stale", "weight_updates",
}  # fmt: skip

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.timeout(600)]


def start(runs_dir: Path, *arguments: str, config: Path = CONFIG) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        "dart_train",
        "run",
        str(config),
        "--runs-dir",
        str(runs_dir),
        "--plain",
        *arguments,
    ]
    log = (runs_dir / "launcher.log").open("ab")
    with log:
        tied = die_with_parent()  # a failing test must not leave a run behind
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=tied)


def wait_for(condition, process: subprocess.Popen, runs_dir: Path):
    """Wait for something that a run does, and return it."""
    log = runs_dir / "launcher.log"
    return wait_until(
        condition,
        400,
        trouble=lambda: process.poll() is not None and f"it ended early with {process.returncode}: {log.read_text()}",
        explain=log.read_text,
        look_s=0.05,
    )


def processes_of(runs_dir: Path) -> list[psutil.Process]:
    """Every living process that has the runs' directory on its command line or as an ancestor's."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(runs_dir) in word for word in words):
            found.append(process)
    return found


def module(runs_dir: Path, name: str) -> psutil.Process | None:
    found = processes_of(runs_dir)  # with the command lines as they were read: a process may have ended since
    lines = [(process, process.info["cmdline"] or []) for process in found]
    words = ["-m", "dart_train", "process"]
    return next((process for process, line in lines if line[1:4] == words and line[5:6] == [name]), None)


def metrics(runs_dir: Path, name: str) -> list[dict]:
    return list(read_metrics(runs_dir / "e2e" / "metrics" / f"{name}.jsonl"))


def assert_nothing_left(runs_dir: Path) -> None:
    wait_until(lambda: not processes_of(runs_dir), explain=lambda: [p.info for p in processes_of(runs_dir)])
    assert not list((runs_dir / "e2e").glob("*.sock"))
    assert not (runs_dir / "e2e" / "run.lock").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run whose rollout service and trainer were killed once each, and then its launcher, which was started again."""
    runs_dir = tmp_path_factory.mktemp("runs")
    run = start(runs_dir)
    wait_for(lambda: metrics(runs_dir, "trainer"), run, runs_dir)
    module(runs_dir, "rollout").send_signal(signal.SIGKILL)
    module(runs_dir, "learn").send_signal(signal.SIGKILL)
    steps = len(metrics(runs_dir, "trainer"))
    wait_for(lambda: len(metrics(runs_dir, "trainer")) > steps, run, runs_dir)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    again = start(runs_dir)  # at once: it waits for the modules of the killed one to end
    again.wait(300)
    assert again.returncode == 0, (runs_dir / "launcher.log").read_text()
    return runs_dir


def test_a_run_survives_the_death_of_modules_and_launcher(finished):
    state = json.loads((finished / "e2e" / "state.json").read_text())
    assert state["lives"] == 2
    assert all("finished" in phase for phase in state["phases"].values())
    assert_nothing_left(finished)


def test_engines_read_weights_from_the_trainers_memory(finished):
    """The files are there as well: engines that start read them."""
    rows = metrics(finished, "rollout")
    assert max(row["weight_updates_from_memory"] for row in rows) > 0
    assert not any(row["weights_skipped"] for row in rows)


def test_the_report_has_its_keys(finished):
    figures = json.loads((finished / "e2e" / "report.json").read_text())
    assert REPORT_KEYS <= set(figures)
    assert 96 - 4 < figures["rollouts"] <= 96  # a last group that does not fit the budget is not begun
    assert figures["weight_updates"] >= 3
    assert 0 < figures["env_utilisation"] <= 1
    page = (finished / "e2e" / "report.html").read_text()
    assert "Learning curves" in page
    assert "dart-agent view runs/e2e" in page and page.count("<svg") >= 3


def test_a_finished_run_returns_at_once(finished):
    started = time.monotonic()
    again = start(finished)
    assert again.wait(60) == 0
    assert time.monotonic() - started < 20


def test_another_configuration_under_the_same_name_is_refused(finished):
    other = start(finished, "--set", "seed=2")
    assert other.wait(60) == 1
    assert "was made by another configuration" in (finished / "launcher.log").read_text()


def test_ctrl_c_leaves_nothing_and_the_same_command_goes_on(tmp_path):
    run = start(tmp_path)
    wait_for(lambda: metrics(tmp_path, "progress"), run, tmp_path)
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130
    assert_nothing_left(tmp_path)
    assert "the same command resumes the run" in (tmp_path / "launcher.log").read_text()
