"""Evaluations that are killed (-9, real processes) and go on end with the numbers of those that were not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_agent.commands.agent_cli import app
from dart_agent.episodes.episode_files import RecordError, find_episodes, read_episode
from dart_agent.episodes.play import lost_by
from dart_agent.episodes.trajectory_format import pack_trajectory
from dart_agent.evaluation.evaluate import evaluate
from dart_agent.evaluation.evaluation_directory import EvaluationDirectory, Plan, app_of, read_outcomes
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_agent.policies.random_policy import RandomPolicy
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState
from dart_gym.sessions.session import Session

ROOT = Path(__file__).parents[3]
TASKS = ["fake/click-button", "fake/two-steps"]
BASICS = ["debian-basics/terminal-count", "debian-basics/dialog-order", "debian-basics/mousepad-new-file"]


class Sessions:
    """Sessions in this process; counts the episodes that are begun."""

    def __init__(self) -> None:
        self.begun = 0

    def session(self) -> Session:
        sessions = self

        class Counting(Session):
            async def reset(self, *args, **options):
                sessions.begun += 1
                return await super().reset(*args, **options)

        return Counting()


def plan(**more) -> Plan:
    return Plan(**{"policy": "random", "tasks": tuple(TASKS), "seeds": (0, 1, 2), **more})


async def play(directory: EvaluationDirectory | None, sessions: Sessions | None = None, **options):
    make = lambda session: RandomPolicy()  # noqa: E731
    return await evaluate(sessions or Sessions(), make, TASKS, range(3), directory=directory, **options)


async def test_what_is_done_is_not_played_again(tmp_path):
    whole = await play(None)
    with EvaluationDirectory(tmp_path / "e", plan(seeds=(0, 1))) as directory:
        await evaluate(Sessions(), lambda session: RandomPolicy(), TASKS, range(2), directory=directory)
    sessions, told = Sessions(), []
    with EvaluationDirectory(tmp_path / "e", plan()) as directory:
        assert await play(directory, sessions, on_episode=told.append) == whole
    assert sessions.begun == 2 and [episode.seed for episode in told] == [2, 2], "a plan may grow"
    with EvaluationDirectory(tmp_path / "e", plan()) as directory:
        assert await play(directory, sessions) == whole
    assert sessions.begun == 2
    assert len(read_outcomes(tmp_path / "e")) == 6


async def test_another_plan_is_refused(tmp_path):
    with EvaluationDirectory(tmp_path, plan(settings={"model": "a", "x": 1})):
        with pytest.raises(ConfigurationError, match="another process"), EvaluationDirectory(tmp_path, plan()):
            pass
    for other, says in (
        (plan(policy="oracle", settings={"model": "a", "x": 1}), "policy 'random', not 'oracle'"),
        (plan(max_steps=3, settings={"model": "a", "x": 1}), "max_steps None, not 3"),
        (plan(settings={"model": "b", "x": 1}), "model 'a', not 'b'"),
    ):
        with pytest.raises(ConfigurationError, match=says), EvaluationDirectory(tmp_path, other):
            pass
    (tmp_path / "evaluation.json").write_text("{")
    with pytest.raises(RecordError, match=r"evaluation\.json"), EvaluationDirectory(tmp_path, plan()):
        pass
    with pytest.raises(RecordError, match="not the directory of an evaluation"):
        read_outcomes(tmp_path / "other")
    (tmp_path / "evaluation.json").write_text('{"policy": "random", "tasks": [], "seeds": [], "max_steps": null}')
    with pytest.raises(RecordError, match="another version"), EvaluationDirectory(tmp_path, plan()):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="--out"), EvaluationDirectory(tmp_path / "file", plan()):
        pass


async def test_a_task_that_changed_is_not_mixed_in(tmp_path):
    with EvaluationDirectory(tmp_path, plan()) as directory:
        await play(directory)
    path = next(find_episodes(tmp_path))
    changed = replace(read_episode(path), task_hash="0123456789abcdef")
    (path / "trajectory.msgpack").write_bytes(pack_trajectory(changed))
    with EvaluationDirectory(tmp_path, plan()) as directory:
        with pytest.raises(ConfigurationError, match="has changed since"):
            await play(directory)


async def test_lost_episodes_are_kept_apart_and_played_again_next_time(tmp_path):
    class Broken:
        """An environment that is broken until it is mended."""

        mended = False

        def session(self):
            return self

        async def __aenter__(self):
            return self

        async def __aexit__(self, *exc):
            pass

        async def reset(self, task, *, seed, max_steps=None, time_limit_s=None, pacing=None):
            lost = not self.mended and seed == 1
            status = EvaluationStatus.EVALUATION_ERROR if lost else EvaluationStatus.OK
            evaluation = Evaluation(status, None if lost else 1.0, "test/1", "it broke" if lost else "")
            return StepResult(Observation(None, "x"), TerminalState.DONE, evaluation)

    source = Broken()
    for mended, lost, kept in ((False, {"evaluation": 1}, 2), (True, {}, 3)):
        source.mended = mended
        with EvaluationDirectory(tmp_path, plan(tasks=(TASKS[0],))) as directory:
            [score] = await evaluate(
                source, lambda session: RandomPolicy(), TASKS[:1], range(3), directory=directory, attempts=2
            )
        assert (score.lost_by, score.episodes, score.successes) == (lost, kept, kept)
        outcome = next(record for record in read_outcomes(tmp_path) if record.seed == 1)
        assert (outcome.lost_by, outcome.attempts) == (("", 1) if mended else ("evaluation", 2))


def test_who_lost_an_episode():
    for terminal, status, expected in (
        (TerminalState.MODEL_ERROR, EvaluationStatus.OK, "engine"),
        (TerminalState.ENV_ERROR, EvaluationStatus.ENVIRONMENT_ERROR, "environment"),
        (TerminalState.DONE, EvaluationStatus.EVALUATION_ERROR, "evaluation"),
        (TerminalState.PARSE_ERROR, EvaluationStatus.OK, ""),
    ):
        evaluation = Evaluation(status, 0.0 if status is EvaluationStatus.OK else None, "test/1")
        assert lost_by(terminal, evaluation) == expected


def test_applications_of_tasks():
    assert app_of("fake/two-steps") == "fake"
    assert app_of("elsewhere/on-the-clusters-machine") == "elsewhere"
    assert app_of("debian-basics/calc-sort") == "libreoffice_calc"
    assert app_of("debian-basics/calculator-to-note") == "multi_apps"


# Real processes


def command(out: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "dart_agent.commands.agent_cli", "eval", *arguments, "--out", str(out)]


def run_eval(out: Path, *arguments: str, timeout: float) -> dict:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command(out, *arguments), check=True, capture_output=True, env=environment, timeout=timeout)
    return json.loads((out / "scores.json").read_text())


def kill_during(out: Path, episodes: int, *arguments: str, timeout: float) -> int:
    """Start an evaluation, kill it (-9) when so many episodes are done; return how many were."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command(out, *arguments), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + timeout
    while len(list(find_episodes(out))) < episodes and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was to be killed while it still played"
    assert not (out / "scores.json").exists()
    return len(list(find_episodes(out)))


def check_killed_and_resumed(tmp_path: Path, total: int, *arguments: str, timeout: float, kills: int = 2) -> dict:
    """Play whole, and killed now and then; both must end with the same scores. Returns them."""
    whole = run_eval(tmp_path / "whole", *arguments, timeout=timeout)
    done = 0
    for kill in range(kills):
        enough = max(done + 1, total * (kill + 1) // (kills + 2))
        done = kill_during(tmp_path / "killed", enough, *arguments, timeout=timeout)
        assert enough <= done < total
    assert run_eval(tmp_path / "killed", *arguments, timeout=timeout) == whole
    assert not [path for path in find_episodes(tmp_path / "killed", partial=True) if path.name.endswith(".partial")]
    return whole


@pytest.mark.thorough
@pytest.mark.process
def test_killed_and_resumed_on_the_drawn_desktop(tmp_path):
    arguments = ("--suite", "fake", "--policy", "random", "--n", "40", "--parallel", "2")
    scores = check_killed_and_resumed(tmp_path, 80, *arguments, timeout=60, kills=1)
    assert 0 < scores["scores"][-1]["successes"] < 80
    names = [str(tmp_path / "whole"), str(tmp_path / "killed")]
    compared = CliRunner().invoke(app, ["compare", *names], catch_exceptions=False).output
    assert compared.startswith("no difference") and "80 pairs" in compared


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"), seed=1, config=TinyModelConfig(layers=1, vision_layers=1))


def policy_arguments(policy: str, tiny_model: Path) -> tuple[str, ...]:
    if policy != "vlm":
        return ("--policy", policy)
    return ("--policy", "vlm", "--model", str(tiny_model), "--style", "short", "--max-tokens", "12")


@pytest.mark.slow
@pytest.mark.desktop
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("policy", ["oracle", "random", "vlm"])
def test_killed_and_resumed_on_real_applications(tmp_path, policy, tiny_model):
    arguments = (*BASICS, *policy_arguments(policy, tiny_model), "--n", "2", "--parallel", "2", "--max-steps", "15")
    scores = check_killed_and_resumed(tmp_path, 6, *arguments, timeout=900)
    total = scores["scores"][-1]
    assert total["lost"] == 0 and total["rate"] == (1.0 if policy == "oracle" else 0.0)


@pytest.mark.slow
@pytest.mark.desktop
@pytest.mark.timeout(7000)
@pytest.mark.parametrize("policy", ["oracle", "random", "vlm"])
def test_killed_and_resumed_on_the_whole_suite(tmp_path, policy, tiny_model):
    arguments = ("--suite", "debian-basics", *policy_arguments(policy, tiny_model), "--n", "1", "--parallel", "2")
    scores = check_killed_and_resumed(tmp_path, 55, *arguments, timeout=3000)
    assert scores["scores"][-1]["lost"] == 0
    assert (policy == "oracle") == (scores["scores"][-1]["rate"] == 1.0)
