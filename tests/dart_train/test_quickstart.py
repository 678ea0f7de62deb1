"""The promise of the quick start, on this machine: it learns, and what must not learn does not. Many minutes.

All together take more than an hour on two cores. In pieces, each with what the others left:

    pytest tests/dart_train/test_quickstart.py --runs runs/promise -k small
    pytest tests/dart_train/test_quickstart.py --runs runs/promise -k "it_learns and not seeds"

A run that is finished in that directory is not run again, and one that was cut off goes on where it was.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from test_end_to_end import REPORT_KEYS, processes_of, start, wait_for

from dart_gym.utils.processes import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "quickstart.yaml"
SMALL = (
    "cluster.desktops=2",
    "demonstrations.per_task=4",
    "demonstrations.per_task_of={}",
    "warmup.max_steps=4",
    "rollout.workers=2",
    "rollout.group_size=4",
    "rollout.budget_rollouts=32",
    "data.curation.drop_no_signal=false",
    "trainer.groups_per_step=2",
    "evaluation.episodes=2",
    "evaluation.beside_episodes=1",
    "evaluation.beside=['miniwob/enter-text', 'dialogs/enter-word']",
    "controls.phases.constant-click.seeds=2",
)
"""The same tasks and phases, too short to learn anything."""

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.desktop, pytest.mark.timeout(3600)]
Command = Callable[..., dict]


@pytest.fixture(scope="module")
def runs_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = request.config.getoption("--runs")
    return Path(given).resolve() if given else tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def dart_train(runs_dir: Path) -> Command:
    """Runs `dart-train run` or `controls`, unless it is finished already; returns the report's figures."""

    def call(command: str, name: str, *settings: str) -> dict:
        line = [sys.executable, "-m", "dart_train", command, str(CONFIG), "--runs-dir", str(runs_dir), "--plain"]
        line += ["--name", name, *(word for setting in settings for word in ("--set", setting))]
        subprocess.run(line, check=True, cwd=ROOT, preexec_fn=die_with_parent())  # which a time-out ends with the test
        return json.loads((runs_dir / name / "report.json").read_text())

    return call


def assert_learned(found: dict) -> None:
    assert found["success_before"] <= 0.50
    assert found["success_after"] >= 0.75
    assert found["success_before_ci_high"] < found["success_after_ci_low"]


def test_every_phase_and_the_controls_in_small(dart_train, runs_dir):
    dart_train("run", "small", *SMALL)
    found = dart_train("controls", "small", *SMALL)
    state = json.loads((runs_dir / "small" / "state.json").read_text())
    assert all("finished" in phase for phase in state["phases"].values()), state
    evaluations = ("base", "before", "greedy_before", "after", "greedy_after", "supervised", "shuffled")
    intervals = {f"success_{label}{end}" for label in evaluations for end in ("", "_ci_low", "_ci_high")}
    assert REPORT_KEYS | intervals <= set(found)
    assert all(0 <= found[key] <= 1 for key in intervals)
    assert 0 < found["rollouts"] <= 32 and found["weight_updates"] > 1  # the warm start is the first


def test_a_control_that_is_killed_beside_the_tests_is_trained_anew(tmp_path):
    def trainers() -> list[psutil.Process]:
        return [process for process in processes_of(tmp_path) if {"process", "supervised"} <= {*process.cmdline()}]

    longer = [*SMALL, "rollout.budget_rollouts=96"]  # the control takes as long as they
    line = ["--name", "killed", *(word for setting in longer for word in ("--set", setting))]
    run = start(tmp_path, *line, config=CONFIG)
    (first,) = wait_for(trainers, run, tmp_path)
    first.kill()
    wait_for(lambda: [process for process in trainers() if process != first], run, tmp_path)
    run.kill()
    run.wait()
    assert start(tmp_path, *line, config=CONFIG).wait(600) == 0, (tmp_path / "launcher.log").read_text()
    state = json.loads((tmp_path / "killed" / "state.json").read_text())
    assert state["lives"] == 2 and all("finished" in phase for phase in state["phases"].values()), state
    assert 0 <= json.loads((tmp_path / "killed" / "report.json").read_text())["success_supervised"] <= 1


def test_it_learns(dart_train):
    found = dart_train("run", "quickstart")
    assert_learned(found)
    assert found["env_utilisation"] >= 0.4


def test_supervised_training_for_the_same_time_stays_below(dart_train):
    found = dart_train("run", "quickstart")
    assert found["success_supervised_ci_high"] < found["success_after_ci_low"]


def test_shuffled_rewards_teach_nothing(dart_train):
    dart_train("run", "quickstart")
    found = dart_train("controls", "quickstart")
    assert found["success_shuffled"] < found["success_before"] + 0.10


@pytest.mark.parametrize("seed", [1, 2])
def test_it_learns_with_other_seeds(dart_train, seed):
    assert_learned(dart_train("run", f"seed-{seed}", f"seed={seed}", "controls.supervised=false"))
