from __future__ import annotations

import io
import json
import time

import pytest
from data_builders import SMALL, make_step, make_trajectory, open_manager, publish, record_group
from rich.console import Console

from dart_gym.core.outcomes import TerminalState
from dart_train.commands.data_care_commands import show_findings
from dart_train.commands.data_tables import show_status
from dart_train.core.metrics_log import MetricsLog, read_metrics
from dart_train.data import DataManager
from dart_train.data.maintenance.data_service import DataService
from dart_train.data.maintenance.integrity_check import CheckReport, Problem


@pytest.fixture
def run(tmp_path, database) -> DataManager:
    config = SMALL.model_copy(update={"experience_pool": True, "max_staleness": 1})
    with open_manager(tmp_path, config=config) as manager:
        yield manager


@pytest.fixture
def busy(run) -> DataManager:
    """A run with something of everything."""
    for version in (5, 6, 7):
        publish(run, version)
    run.record(make_trajectory("shown", "", 1.0, source="oracle", steps=(make_step(logprobs=()),)))
    record_group(run, "stale", version=3)
    record_group(run, "stale4", version=4)
    record_group(run, "ready", version=7)
    record_group(run, "leased", version=6)
    record_group(run, "flat", (1.0, 1.0), version=7)
    record_group(run, "failed", (0.0, 0.0), version=7)
    run.record(make_trajectory("alone", "open", 1.0, 7))
    run.record(make_trajectory("broken", "open", None, 7, terminal=TerminalState.ENV_ERROR))
    run.lease(1, "trainer-0")
    return run


def test_one_snapshot_tells_everything(busy):
    status = busy.status()
    assert status.newest_version == 7
    assert status.figures["groups_ready_by_task"] == {"fake/button": 2}
    assert status.making == {(1, 2): 1}
    assert status.trained_staleness == {}
    assert status.census.dropped == {"no_signal": 2, "replaced": 1, "stale": 4, "untrainable": 1}
    assert status.dropped_groups == {"no_signal": 1, "stale": 2}
    assert status.figures["staleness_waiting"] == {0: 3, 1: 2}
    [held] = status.leases
    assert (held.holder, held.groups) == ("trainer-0", 1)
    assert 0 < held.expires_in_s <= 60
    assert status.pool[0].uses == 1
    assert status.census.total == 15


def test_why_says_which_versions_are_served_and_which_rows_carry(busy):
    why = busy.diagnose(asked=12)
    assert "12 groups asked for" in why
    assert "4 older than version 6 (serving versions {6,7}; rows carry {3,4})" in why
    assert "2 in groups with no variance (1 groups all 1)" in why
    assert "1 in unfinished groups (1 with 1 of 2)" in why
    assert "leased now (trainer-0 2)" in why
    assert "error (env_error 1)" in why


def test_groups_that_no_sweep_has_expired_count_as_stale(run):
    publish(run, 1)
    record_group(run, "old", version=1)
    publish(run, 7)
    assert "2 older than version 6 (serving versions {7}; rows carry {1})" in run.diagnose()


def test_why_names_what_the_engines_really_serve(busy):
    busy.serving("r0", 7)
    busy.serving("r1", 5)  # one that missed an update: its rollouts will be stale as well
    assert "(serving versions {5,7}; rows carry {3,4})" in busy.diagnose()
    output = io.StringIO()
    show_status(busy.status(), Console(file=output, width=140))
    row = next(line for line in output.getvalue().splitlines() if "r1" in line)
    assert "v5" in row and "r0" not in row


def test_the_same_numbers_go_to_the_metrics(busy, tmp_path):
    log = MetricsLog(tmp_path / "data.jsonl")
    DataService(busy, log).turn()
    log.close()
    [line] = read_metrics(tmp_path / "data.jsonl")
    status = busy.status()
    assert line["dropped"] == status.census.dropped
    assert line["groups_ready_by_task"] == {"fake/button": 2}
    assert (line["pool"], line["pool_uses"], line["groups_making"]) == (1, 1, 1)
    assert line["eligible"] == status.census.eligible


def test_the_tables_show_the_numbers(busy):
    output = io.StringIO()
    show_status(busy.status(), Console(file=output, width=140))
    text = output.getvalue()
    for part in ("newest weights v7", "rows carry {3,4}", "fake/button", "oracle", "trainer-0", "1 of 2", "no signal"):
        assert part in text, text


def test_an_empty_run_has_tables_too(run):
    output = io.StringIO()
    show_status(run.status(), Console(file=output, width=100))
    assert "is the rollout service running" in output.getvalue()


def test_findings_are_shown_and_many_are_cut_short():
    report = CheckReport(trajectories=3)
    for number in range(40):
        report.add(Problem.ROW_WITHOUT_FILES, f"t{number}", "[gone]")
    output = io.StringIO()
    show_findings(report, Console(file=output, width=100))
    assert "and 10 more" in output.getvalue()
    assert "[gone]" in output.getvalue()
    assert "40 findings" in output.getvalue()


def test_figures_are_plain_json(busy):
    started = time.monotonic()
    assert json.loads(json.dumps(busy.status().figures))["pool"] == 1
    assert time.monotonic() - started < 5
