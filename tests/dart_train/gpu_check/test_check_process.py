"""A check that crashes, raises or hangs is one failed row, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from dart_train.gpu_check.check_list import Check
from dart_train.gpu_check.check_process import run_check
from dart_train.gpu_check.check_setting import CheckSetting
from dart_train.gpu_check.outcome import Outcome, Status
from tests.helpers.waiting import wait_until

FUNCTIONS = "tests.dart_train.gpu_check.check_functions"


def run(name: str, tmp_path: Path, limit_s: float = 60.0) -> list[Outcome]:
    setting = CheckSetting("cpu", 2, tmp_path, False, tmp_path, False)
    return run_check(Check(name, f"{FUNCTIONS}:{name}", limit_s), setting)


@pytest.mark.process
def test_outcomes_cross_the_process_boundary(tmp_path):
    assert run("passes", tmp_path) == [Outcome("passes", Status.OK, "2 devices", values={"seconds": 1.5})]


@pytest.mark.process
@pytest.mark.parametrize(("name", "said"), [("raises", "illegal memory access"), ("aborts", "SIGABRT")])
def test_a_crash_is_a_failed_row(name, said, tmp_path):
    (outcome,) = run(name, tmp_path)
    assert outcome.status is Status.FAILED and said in outcome.found and outcome.advice


@pytest.mark.thorough
@pytest.mark.process
def test_a_hanging_check_ends_with_its_children(tmp_path):
    (outcome,) = run("hangs", tmp_path, limit_s=20.0)
    assert outcome.status is Status.FAILED and "20 s" in outcome.found
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not alive(child))


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
