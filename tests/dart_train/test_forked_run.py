"""A whole run with forks, a teacher that dies, and judges that say nothing, while each of its processes is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from dart_gym.utils.processes import die_with_parent
from dart_train.config.run_config import load_config
from dart_train.core.data_states import LeaseState, Reason
from dart_train.core.demo_models import demo_model
from dart_train.core.metrics_log import last_of_lives, read_metrics
from dart_train.data.insight import statistics
from dart_train.data.maintenance.integrity_check import HARMLESS, check_run
from dart_train.data.store.schema import lease, lease_item
from dart_train.processes.process_context import open_data
from dart_train.run.run_directory import RunDirectory
from dart_train.run.run_status import status
from tests.dart_train.test_end_to_end import module, processes_of, start, wait_for
from tests.helpers.waiting import wait_until

CONFIG = Path(__file__).with_name("learning.yaml")
ROOT = Path(__file__).parents[2]
BUDGET = 180
TASKS = "forked_play:Forked/changing", "fake/two-steps"
SUITE = ROOT / "tests" / "dart_train" / "rollout"
KILLED = ("engine", "cluster", "learn", "rollout")

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Finished:
    """A run that has ended, what `dart-train status` said of it, and what its report says."""

    run: RunDirectory
    said: str
    figures: dict[str, Any]
    page: str


@contextlib.contextmanager
def teacher(model: Path, directory: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """An engine that serves a model, as a process of its own."""
    listen = f"ws+unix://{directory}/t.sock"
    server = (
        sys.executable,
        "-m",
        "dart_agent.engines.remote.engine_server",
        "--model",
        str(model),
        "--listen",
        listen,
    )
    with subprocess.Popen(server, cwd=ROOT, preexec_fn=die_with_parent()) as process:
        try:
            wait_until((directory / "t.sock").exists, 300, trouble=lambda: process.poll() is not None)
            yield listen, process
        finally:
            process.kill()


def find(runs_dir: Path, victim: str) -> psutil.Process | None:
    """A process of the run by its part in it."""
    modules = {"engine": "dart_agent.engines.remote.engine_server", "cluster": "dart_gym.commands.gym_cli"}
    if victim not in modules:
        return module(runs_dir, victim)
    for root in processes_of(runs_dir):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            for one in (root, *root.children(recursive=True)):
                if one.cmdline()[1:3] == ["-m", modules[victim]]:
                    return one
    return None


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Iterator[Finished]:
    """The run: the teacher dies first, then each process of the run while forks are played, its launcher last."""
    runs_dir, sockets = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("t")
    model = demo_model("tiny-base")
    run = RunDirectory(runs_dir / "learning")

    def rows(name: str) -> list[dict[str, Any]]:
        return list(read_metrics(run.metrics(name)))

    def forks() -> int:
        return sum(row.get("forks", 0) for row in last_of_lives(rows("rollout")))

    with pytest.MonkeyPatch.context() as patch, teacher(model, sockets) as (url, its_engine):
        patch.setenv("PYTHONPATH", f"{SUITE}{os.pathsep}{ROOT}")
        patch.syspath_prepend(SUITE)
        settings = ("--set", f"teacher.options.model={model}", "--set", f"teacher.options.url={url}")
        launcher = start(runs_dir, *settings, config=CONFIG)
        wait_for(
            lambda: rows("trainer") and forks() > 2 and rows("rollout")[-1]["teacher"]["steps"], launcher, runs_dir
        )
        its_engine.kill()
        wait_for(lambda: rows("rollout")[-1]["teacher"]["away"], launcher, runs_dir)
        for victim in KILLED:
            process = wait_for(lambda name=victim: find(runs_dir, name), launcher, runs_dir)
            before = forks()
            process.send_signal(signal.SIGKILL)
            wait_for(lambda known=before: forks() > known + 1, launcher, runs_dir)
        said = status(run)
        os.kill(launcher.pid, signal.SIGKILL)
        launcher.wait()
        again = start(runs_dir, *settings, config=CONFIG)
        again.wait(500)
        assert again.returncode == 0, (runs_dir / "launcher.log").read_text()
        yield Finished(run, said, json.loads(run.figures.read_text()), (run.root / "report.html").read_text())


def test_forked_groups_are_trained_on_once_and_none_is_lost(finished):
    trained = (
        sa.select(lease_item.c.group_id, sa.func.count())
        .join(lease, lease.c.lease_id == lease_item.c.lease_id)
        .where(lease.c.state == LeaseState.COMMITTED.value)
        .group_by(lease_item.c.group_id)
    )
    with open_data(load_config(finished.run.config), finished.run) as data:
        found = check_run(data, orphan_grace_s=0.0)
        assert [str(each) for each in found.findings if each.problem not in HARMLESS] == []
        times = dict(data.store.read(lambda connection: connection.execute(trained).all()))
        assert set(times.values()) == {1}
        played, counts = list(data.trajectories()), data.read(statistics.forks)
        census = data.census()
    whole = {one.trajectory_id: one for one in played if one.source == "rollout"}
    forked = [one for one in played if one.source == "fork"]
    scored = [one for one in played if one.score is not None and one.source in ("rollout", "fork")]
    assert BUDGET - 4 < len(scored) <= BUDGET, "continuations are part of the budget"
    reached = [one for one in forked if one.lost_by != "fork"]
    assert reached and {one.task_id for one in reached if one.score is not None} == {TASKS[1]}
    for one in reached:
        parent = whole[one.forked_from]
        assert (one.task_id, one.seed) == (parent.task_id, parent.seed) and 0 < one.fork_step < len(parent.steps)
        assert one.score is None or one.steps[0].prompt_ids == parent.steps[one.fork_step].prompt_ids
        assert one.score is None or one.num_actions >= one.fork_step, "replayed steps are counted"
    assert counts.rollouts == sum(one.score is not None for one in forked)
    assert finished.figures["forks"] == counts.begun > sum(counts.given_up.values()) > 0
    assert census.dropped[Reason.FORK_DIFFERS] >= sum(counts.given_up.values())


def test_a_task_that_is_not_deterministic_is_named(finished):
    given_up = finished.figures["forks_given_up"]
    assert f"{given_up} of them were given up, since a replay came out differently: {TASKS[0]}" in finished.page
    assert f"given up, since a replay came out differently: {TASKS[0]} (" in finished.said
    assert f"a fork of {TASKS[0]}" in (finished.run.logs / "rollout.log").read_text()


def test_a_teacher_that_dies_is_missed_in_log_status_report_and_alarms(finished):
    log = (finished.run.logs / "rollout.log").read_text()
    assert "the teacher is away, will go on trying" in log
    assert "training goes on without it" in finished.said
    assert finished.figures["taught_steps"] > 0 < finished.figures["untaught_episodes"]
    assert "and was not back at the end; training went on without it" in finished.page
    assert "Alarm teacher: most episodes that the teacher was to teach come without a lesson" in finished.page


def test_judges_that_say_nothing_are_told_apart_from_those_that_do(finished):
    log = (finished.run.logs / "rollout.log").read_text()
    assert "the judge odd answered what is no judgement" in log
    for said in (finished.said, finished.page):
        assert "it gives no judgement of 100% of the episodes" in said
        assert "of which the evaluators call a failure: it tells nothing" in said
    assert "rewards.eager: this judge is trained with, and nobody knows how far it agrees" in finished.page
