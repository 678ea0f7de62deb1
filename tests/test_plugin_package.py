"""`examples/plugin`, as a user would have it: installed, played, and trained with."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from dart_gym.utils.plugins import child_environment
from dart_train.core.metrics_log import read_metrics
from tests.helpers.packages import pip_install

PACKAGE = Path(__file__).parents[1] / "examples" / "plugin"
PLAY = """
import gymnasium, dart_gym
env = gymnasium.make("DartGym/Desktop-v0", task="squares/smallest")
observation, info = env.reset(seed=4)
print(observation["instruction"], env.unwrapped.step(env.unwrapped.oracle())[1])
env.close()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """The variables of a process that has the package, installed in a directory of its own, on its path."""
    site = pip_install(PACKAGE, tmp_path_factory.mktemp("plugin"))
    return child_environment({**os.environ, "PYTHONPATH": str(site)})


def call(environment: dict[str, str], *command: str | Path, timeout: float = 110.0) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough
@pytest.mark.process
def test_its_suite_is_played_through_gym_make(environment):
    assert call(environment, sys.executable, "-c", PLAY) == "Click the smallest square. 1.0\n"


@pytest.mark.thorough
@pytest.mark.process
def test_its_suite_and_policy_are_named_on_the_command_line(environment):
    listed = call(environment, sys.executable, "-m", "dart_gym.commands.gym_cli", "tasks", "list", "squares")
    assert listed.split() == ["squares/largest", "squares/smallest"]
    command = (sys.executable, "-m", "dart_agent.commands.agent_cli", "eval", "squares", "--policy", "largest")
    assert "ended as: 6 done" in call(environment, *command, "--n", "3")


@pytest.mark.process
def test_its_format_reads_what_it_writes(environment):
    code = """
from dart_agent.formats import get_format
from dart_gym import Click, Type
point = get_format("point")
print(point.format(Click(40, 72), (112, 112)), point.parse("point 40 72", (112, 112)).actions)
print(point.parse("click", (112, 112)).errors[0].reason)
"""
    printed = call(environment, sys.executable, "-c", code).splitlines()
    assert printed[0].startswith("point 40 72 (Click(x=40, y=72") and printed[1] == "write 'point X Y'"


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_run_trains_with_all_of_it(environment, tmp_path):
    command = (sys.executable, "-m", "dart_train", "run", PACKAGE / "squares.yaml", "--runs-dir", tmp_path, "--plain")
    call(environment, *command, timeout=580.0)
    steps = list(read_metrics(tmp_path / "squares" / "metrics" / "trainer.jsonl"))
    assert steps and all("spread" in step for step in steps), "the loss was not used"
    database = next((tmp_path / "squares" / "data").glob("*.sqlite*"))
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        reasons = Counter(reason for (reason,) in connection.execute("SELECT reason FROM rollout_meta"))
    assert reasons["overlong"] > 0, f"the rule was not used: {reasons}"
