"""`DesktopEnv` as Gymnasium sees it."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
import subprocess
import sys
import time
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import dart_gym
from dart_gym.core.errors import ConfigurationError, EpisodeStateError, UnknownTaskError
from dart_gym.envs.desktop_env import DesktopEnv
from dart_gym.envs.episode_info import TIMINGS

ID = "DartGym/Desktop-v0"
pytestmark = pytest.mark.usefixtures("one_private_cluster")


@pytest.fixture
def env():
    env = gymnasium.make(ID, task="fake/two-steps", render_mode="rgb_array")
    yield env
    env.close()


@pytest.mark.parametrize("task", ["fake/click-button", "fake/two-steps"])
def test_gymnasiums_checker_has_nothing_to_say(task):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(ID, task=task, render_mode="rgb_array")
        check_env(env.unwrapped, skip_render_check=False)
        env.close()


@pytest.mark.desktop
def test_gymnasiums_checker_has_nothing_to_say_about_a_real_desktop():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(ID, render_mode="rgb_array")
        check_env(env.unwrapped, skip_render_check=False)
        env.close()


@pytest.mark.desktop
def test_a_real_desktop_is_solved_by_the_oracle():
    env = gymnasium.make(ID, task="miniwob/click-test")
    for seed in range(3):
        env.reset(seed=seed)
        _, reward, terminated, _, info = env.step(env.unwrapped.oracle())
        assert (reward, terminated, info["evaluation_status"]) == (1.0, True, "ok")
    env.close()


def test_the_spec_survives_json(env):
    spec = EnvSpec.from_json(env.spec.to_json())
    with gymnasium.make(spec) as again:
        assert again.unwrapped.observation_space == env.unwrapped.observation_space
        assert again.reset(seed=1)[1]["task_id"] == "fake/two-steps"


@pytest.mark.process
def test_an_id_with_its_module_needs_no_import():
    code = (
        "import gymnasium as g; e = g.make('dart_gym:DartGym/Desktop-v0', task='fake/click-button'); print(e.spec.id)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ID


def test_making_many_boots_nothing():
    started = time.process_time()
    environments = [DesktopEnv("fake/click-button", url="ws+unix:///nowhere.sock") for _ in range(64)]
    assert time.process_time() - started < 1.0
    for env in environments:
        env.close()


def test_an_episode(env):
    observation, info = env.reset(seed=3)
    assert observation["instruction"].startswith("Click the ") and math.isnan(info["score"])
    keys, kinds = set(info), {key: type(value) for key, value in info.items()}
    terminated = False
    while not terminated:
        observation, reward, terminated, truncated, info = env.step(env.unwrapped.oracle())
        assert env.observation_space.contains(observation) and not truncated
        assert set(info) == keys and {key: type(value) for key, value in info.items()} == kinds
    assert (reward, info["score"], info["terminal"], info["step_index"]) == (1.0, 1.0, "done", 2)
    assert all(f"timing/{phase}" in info for phase in TIMINGS) and json.dumps(info)
    assert np.array_equal(env.render(), observation["screenshot"])


def test_equal_seeds_give_equal_episodes(env):
    frames = [env.reset(seed=seed)[0]["screenshot"] for seed in (5, 5, 6)]
    assert np.array_equal(frames[0], frames[1]) and not np.array_equal(frames[0], frames[2])


def test_actions_may_be_dicts_and_bad_ones_are_refused(env):
    env.reset(seed=0)
    _, _, _, _, info = env.step({"kind": "click", "x": 9999, "y": 1})
    assert "outside" in info["action_error"] and not info["env_fault"]
    with pytest.raises(ValueError, match="unknown action"):
        env.step({"kind": "clik"})
    with pytest.raises(TypeError):
        env.step("click")


def test_a_step_needs_an_episode(env):
    env.reset(seed=0)
    env.step(dart_gym.Done())
    with pytest.raises(EpisodeStateError, match="reset"):
        env.step(dart_gym.Done())


@pytest.mark.parametrize(
    "limit", [{"max_steps": 2}, {"max_episode_steps": 2}, {"max_steps": 2, "max_episode_steps": 9}]
)
def test_the_step_limit_is_evaluated(limit):
    with gymnasium.make(ID, task="fake/two-steps", **limit) as env:
        env.reset(seed=0)
        env.step(dart_gym.Wait(0))
        _, _, terminated, truncated, info = env.step(dart_gym.Wait(0))
    assert truncated and not terminated and info["terminal"] == "step_limit" and info["score"] == 0.0


def test_gymnasiums_step_limit_may_be_longer_than_the_tasks():
    with gymnasium.make(ID, task="fake/two-steps", max_episode_steps=6) as env:  # of its own it has 4
        env.reset(seed=0)
        *_, (_, _, _, truncated, info) = [env.step(dart_gym.Wait(0)) for _ in range(5)]
        assert not truncated and info["step_index"] == 5
        _, _, _, truncated, info = env.step(dart_gym.Wait(0))
    assert truncated and info["terminal"] == "step_limit" and info["score"] == 0.0


def test_tasks_are_chosen_by_option_or_drawn(env):
    _, info = env.reset(options={"task_id": "fake/click-button"})
    assert info["task_id"] == "fake/click-button"
    with gymnasium.make(ID, suite="fake") as many:
        drawn = [many.reset(seed=seed)[1]["task_id"] for seed in range(8)]
        assert set(drawn) == {"fake/click-button", "fake/two-steps"}
        assert drawn == [many.reset(seed=seed)[1]["task_id"] for seed in range(8)]


def test_the_screen_may_have_another_size():
    with gymnasium.make(ID, task="fake/click-button", width=300, height=200) as env:
        observation, _ = env.reset(seed=0)
        assert observation["screenshot"].shape == (200, 300, 3) and observation in env.observation_space
        assert env.step(env.unwrapped.oracle())[1] == 1.0


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"task": "y", "task_id": "x"}, ValueError, "not task and task_id"),
        ({"taskid": "x"}, ValueError, "did you mean 'task_id'"),
        ({"task_id": "fake/x"}, UnknownTaskError, "unknown task"),
        ({"task": {"id": "a", "instruction": "b", "dart": {"desktop": {"kind": "fake"}}}}, ValueError, "1920x1080"),
    ],
)
def test_wrong_options_are_refused(env, options, error, match):
    with pytest.raises(error, match=match):
        env.reset(options=options)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"task": "fake/clickbutton"}, UnknownTaskError, "fake/click-button"),
        ({"task": "fake/two-steps", "suite": "fake"}, ConfigurationError, "one of task, tasks and suite"),
        ({"tasks": []}, ConfigurationError, "empty"),
        ({"task": "fake/two-steps", "render_mode": "human"}, ValueError, "rgb_array"),
        ({"task": "fake/two-steps", "url": "http://x"}, ConfigurationError, "ws://"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, match):
    with pytest.raises(error, match=match):
        env = DesktopEnv(**arguments)
        env.reset()


def test_a_token_comes_from_the_environment(monkeypatch):
    env = DesktopEnv("fake/two-steps", url="ws://127.0.0.1:1", token_env="DART_GYM_TEST_TOKEN")
    with pytest.raises(ConfigurationError, match="DART_GYM_TEST_TOKEN"):
        env.reset()
    assert "secret" not in str(env.__getstate__())
    env.close()


def test_close_is_final_and_may_be_repeated():
    env = DesktopEnv("fake/two-steps")
    env.reset(seed=0)
    env.close()
    env.close()
    with pytest.raises(EpisodeStateError, match="closed"):
        env.reset()


def test_a_pickle_is_a_fresh_environment(env):
    env.reset(seed=0)
    copy = pickle.loads(pickle.dumps(env.unwrapped))
    assert copy.reset(seed=3)[1]["task_id"] == "fake/two-steps"
    copy.close()


async def test_it_works_where_a_loop_runs_already():
    assert asyncio.get_running_loop().is_running()  # as in Jupyter
    with gymnasium.make(ID, task="fake/click-button") as env:
        env.reset(seed=0)
        assert env.step(env.unwrapped.oracle())[1] == 1.0


def test_gymnasium_flattens_what_can_be_flattened(env):
    flat = gymnasium.wrappers.FlattenObservation(env)
    seen, _ = flat.reset(seed=0)
    assert seen["screenshot"].shape == (224 * 168 * 3,) and "button" in seen["instruction"]
    assert flat.observation_space.contains(seen)


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_gymnasiums_own_vector_environments_take_it(mode):
    envs = gymnasium.make_vec(ID, 2, vectorization_mode=mode, task="fake/two-steps")
    observations, infos = envs.reset(seed=1)
    assert observations["screenshot"].shape == (2, 224, 168, 3) and infos["seed"].tolist() == [1, 2]
    observations, *_ = envs.step([dart_gym.Move(1, 1), dart_gym.Move(5000, 1)])
    assert observations["action_error"][0] == "" and "outside" in observations["action_error"][1]
    later, *_ = envs.step([dart_gym.Move(1, 5000), dart_gym.Move(5, 1)])
    assert "outside" in later["action_error"][0] and later["action_error"][1] == ""
    assert "outside" in observations["action_error"][1] and envs.observation_space.contains(later)
    envs.close()
