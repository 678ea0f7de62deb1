"""Checkpoints within a task: what infos tell of them, and rewards that add up to the score."""

from __future__ import annotations

import contextlib
import math

import gymnasium as gym
import numpy as np
import pytest

import dart_gym
from dart_gym.core.errors import TaskError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState
from dart_gym.envs.episode_info import make_info, reward_of
from dart_gym.envs.vector_env import DesktopVectorEnv
from dart_gym.sessions.session import Session
from dart_gym.tasks.catalog.registry import get_task, task_from_dict
from dart_gym.tasks.evaluation.evaluator import read_checkpoints

SCREEN = Observation(np.zeros((2, 2, 3), np.uint8), "")


def result(score: float | None = None, status: str = "ok", ended: bool = False, **info: float) -> StepResult:
    evaluation = Evaluation(EvaluationStatus(status), score, "test") if ended else None
    return StepResult(SCREEN, TerminalState.DONE if ended else None, evaluation, info=info)


@pytest.mark.parametrize(
    ("step", "plain", "shaped"),
    [
        (result(), 0.0, 0.0),
        (result(1.0, ended=True), 1.0, 1.0),  # a task without checkpoints
        (result(progress=0.5), 0.0, 0.0),  # a reset
        (result(progress=0.5, progress_before=0.25), 0.0, 0.25),
        (result(progress=0.0, progress_before=0.25), 0.0, -0.25),
        (result(1.0, ended=True, progress=0.75, progress_before=0.5), 1.0, 0.5),
        (result(0.0, ended=True, progress=0.75, progress_before=0.5), 0.0, -0.5),
        (result(status="environment_error", ended=True, progress=0.5, progress_before=0.5), 0.0, 0.0),
    ],
)
def test_a_shaped_reward_is_what_a_step_brought(step, plain, shaped):
    assert reward_of(step) == plain and reward_of(step, shaped=True) == shaped


def test_every_info_has_a_progress():
    assert math.isnan(make_info(result())["progress"]) and make_info(result(progress=0.5))["progress"] == 0.5


@pytest.mark.process
@pytest.mark.parametrize("shaped", [False, True])
def test_rewards_add_up_to_the_score_shaped_or_not(one_private_cluster, shaped):
    with gym.make("DartGym/Desktop-v0", task="fake/two-steps", shaped_reward=shaped) as env:
        _, info = env.reset(seed=1)
        rewards, progress = [], [info["progress"]]
        while not info["terminal"]:
            _, reward, _, _, info = env.step(env.unwrapped.oracle())
            rewards.append(reward)
            progress.append(info["progress"])
    assert rewards == ([0.5, 0.5] if shaped else [0.0, 1.0]) and progress == [0.0, 0.5, 1.0]
    with contextlib.closing(DesktopVectorEnv(2, "fake/two-steps", shaped_reward=shaped)) as envs:
        envs.reset(seed=1)
        _, rewards, _, _, infos = envs.step([envs.oracle(0), dart_gym.Wait(0.0)])
        assert rewards.tolist() == [0.5 * shaped, 0.0] and infos["progress"].tolist() == [0.5, 0.0]
        envs.send([envs.oracle(0)], [0])
        assert [answer.reward for answer in envs.recv()] == [0.5 if shaped else 1.0]


@pytest.mark.desktop
async def test_checkpoints_are_looked_at_after_each_action_and_once_reached_for_good():
    async with Session() as session:
        started = await session.reset(get_task("debian-basics/terminal-make-folders"), seed=3)
        assert started.terminal is None, started.evaluation
        seen = [started.info["progress"]]
        step = started
        while step.terminal is None:
            step = await session.step(await session.oracle())
            seen.append(step.info["progress"])
    assert seen[0] == 0.0 and seen[-1] == 1.0 and seen == sorted(seen) and step.reward == 1.0
    assert set(seen) <= {0.0, 1 / 3, 2 / 3, 1.0} and step.timings["watch"] > 0


CHECK = {"func": "exact_match", "result": {"type": "vm_command_line", "command": "true"}, "expected": {"type": "rule"}}


@pytest.mark.parametrize(
    ("checkpoints", "words"),
    [
        ([{**CHECK, "func": "no_such"}], "metric no_such is not built in"),
        ([{**CHECK, "result": {"type": "active_url"}}], "getter active_url is not built in"),
        ([{**CHECK, "func": 3}], "'func' must be"),
        (["done"], "no attribute"),
        ([{**CHECK, "result": None}], "has no 'result'"),
    ],
)
def test_a_bad_checkpoint_is_named(checkpoints, words):
    with pytest.raises(TaskError, match=rf"task x: dart.checkpoints: .*{words}"):
        read_checkpoints("x", checkpoints)


@pytest.mark.desktop
async def test_what_cannot_be_looked_at_yet_is_not_reached():
    raw = {
        "id": "t",
        "instruction": "Make note.txt.",
        "evaluator": CHECK,
        "dart": {
            "desktop": {"width": 160, "height": 120},
            "ready": {"still": 0.05},
            "checkpoints": [
                {
                    "func": "compare_text_file",
                    "result": {"type": "vm_file", "path": "/home/user/note.txt", "dest": "note.txt"},
                    "expected": {"type": "vm_file", "path": "/home/user/other.txt", "dest": "other.txt"},
                }
            ],
        },
    }
    async with Session() as session:
        started = await session.reset(task_from_dict(raw), seed=0)
        assert (started.terminal, started.info["progress"]) == (None, 0.0)
        desktop = session.slot.booted
        for name in ("note", "other"):
            await desktop.write_file(f"/home/user/{name}.txt", b"word")
        assert (await session.step(dart_gym.Wait(0.0))).info["progress"] == 1.0
        await desktop.execute(["rm", "/home/user/note.txt"])
        assert (await session.step(dart_gym.Wait(0.0))).info["progress"] == 1.0
