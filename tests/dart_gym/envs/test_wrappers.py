"""Gymnasium's wrappers on both environments, and Gymnasium's own vector environments beside ours."""

from __future__ import annotations

import copy
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordVideo, TimeLimit
from gymnasium.wrappers.vector import (
    DictInfoToList,
    FilterObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TransformObservation,
)
from gymnasium.wrappers.vector import RecordVideo as VectorRecordVideo

from dart_gym.core.actions import Done, Move

ID = "DartGym/Desktop-v0"
TASK = "fake/two-steps"
MODES = list(AutoresetMode)
pytestmark = pytest.mark.usefixtures("one_private_cluster")


@pytest.fixture
def make_envs():
    made = []

    def make(num_envs: int, **arguments):
        made.append(gymnasium.make_vec(ID, num_envs, **{"task": TASK, "max_steps": 9, **arguments}))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def run_episodes(envs, mode: AutoresetMode, episodes: int) -> dict:
    """Environment 0 ends its episode at each second step; returns the infos of the last such step."""
    infos: dict = {}
    envs.reset(seed=0)
    for _ in range(episodes):
        envs.step([Move(1, 1)] * 2)
        _, _, terminations, _, infos = envs.step([Done(), Move(1, 1)])
        assert terminations.tolist() == [True, False]
        infos = copy.deepcopy(infos)  # the wrapper changes its arrays in place
        if mode is AutoresetMode.NEXT_STEP:
            envs.step([Move(1, 1)] * 2)
        elif mode is AutoresetMode.DISABLED:
            envs.reset(options={"reset_mask": terminations})
    return infos


@pytest.mark.parametrize("mode", MODES)
def test_episode_statistics(make_envs, mode):
    envs = RecordEpisodeStatistics(make_envs(2, autoreset_mode=mode))
    infos = run_episodes(envs, mode, 2)
    assert infos["episode"]["l"].tolist() == [2, 0] and infos["_episode"].tolist() == [True, False]
    assert envs.episode_count == 2 and list(envs.length_queue) == [2, 2]


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_videos_of_a_vector(make_envs, mode, tmp_path):
    inner = make_envs(2, autoreset_mode=mode, render_mode="rgb_array")
    envs = VectorRecordVideo(inner, str(tmp_path / "videos"), episode_trigger=lambda episode: True)
    run_episodes(envs, mode, 1)
    envs.close()
    assert list(tmp_path.glob("videos/*.mp4"))


def test_observations_may_be_filtered_and_transformed(make_envs):
    envs = FilterObservation(make_envs(2), ["screenshot"])
    observations, _ = envs.reset(seed=0)
    assert set(observations) == {"screenshot"} and envs.observation_space.contains(observations)
    half = gymnasium.spaces.Dict(screenshot=gymnasium.spaces.Box(0, 255, (112, 84, 3), np.uint8))
    halved = TransformObservation(
        make_envs(2), lambda batch: {"screenshot": batch["screenshot"][:, ::2, ::2]}, single_observation_space=half
    )
    observations, _ = halved.reset(seed=0)
    assert halved.observation_space.contains(observations)


def test_rewards_and_lists_of_infos(make_envs):
    envs = DictInfoToList(NormalizeReward(make_envs(2)))
    envs.reset(seed=0)
    _, rewards, _, _, infos = envs.step([Done(), Move(1, 1)])
    assert np.isfinite(rewards).all() and [info["terminal"] for info in infos] == ["done", ""]


@pytest.mark.process
def test_a_time_limit_and_videos_of_one_desktop(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        inner = gymnasium.make(ID, task=TASK, max_steps=9, render_mode="rgb_array")
        with RecordVideo(TimeLimit(inner, 2), str(tmp_path / "videos"), episode_trigger=lambda episode: True) as env:
            env.reset(seed=0)
            assert not env.step(Move(1, 1))[3]
            _, reward, terminated, truncated, info = env.step(Move(2, 2))
    assert truncated and not terminated and info["terminal"] == "" and np.isnan(info["score"])  # cut, not scored
    assert list(tmp_path.glob("videos/*.mp4"))


def test_gymnasiums_vector_environment_shows_the_same(make_envs):
    """Equal seeds and actions, one face or the other: equal observations, rewards, ends and infos."""
    theirs = gymnasium.make_vec(ID, 2, vectorization_mode="sync", task=TASK, max_steps=9)
    ours = make_envs(2)
    try:
        pairs = [(theirs.reset(seed=3), ours.reset(seed=3))]
        actions = [[Move(5, 5), Move(9999, 5)], [Move(1, 1), Done()]]
        pairs += [(theirs.step(action), ours.step(action)) for action in actions]
        for their, our in pairs:
            _assert_equal(their[0], our[0])
            assert all(np.array_equal(one, other) for one, other in zip(their[1:-1], our[1:-1], strict=True))
            for key in ("task_id", "seed", "step_index", "terminal", "score", "env_fault", "_score"):
                assert np.array_equal(their[-1][key], our[-1][key], equal_nan=key == "score"), key
            assert set(their[-1]) == set(our[-1])
    finally:
        theirs.close()


def _assert_equal(one: dict, other: dict) -> None:
    assert set(one) == set(other)
    assert np.array_equal(one["screenshot"], other["screenshot"])
    assert all(one[key] == other[key] for key in ("instruction", "action_error"))


@pytest.mark.process
@pytest.mark.parametrize("prefetch", [0, 1])
async def test_a_vector_works_where_a_loop_runs_already(make_envs, prefetch):
    envs = make_envs(2, autoreset_mode="SAME_STEP", prefetch=prefetch)  # as in Jupyter
    envs.reset(seed=0)
    _, _, terminations, _, infos = envs.step([Done(), Move(1, 1)])
    assert terminations.tolist() == [True, False] and infos["step_index"].tolist() == [0, 1]
    envs.send([Move(1, 1)], [0])
    assert len(envs.recv()) == 1
