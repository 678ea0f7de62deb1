"""Two step limits, Gymnasium's and ours: the smaller one applies, and the episode is scored."""

from __future__ import annotations

import pickle

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from dart_gym.core.actions import Wait
from dart_gym.core.errors import ConfigurationError

ID, TASK = "DartGym/Desktop-v0", "fake/two-steps"  # of its own it has 4 steps
LIMITS = [(50, 2, 2), (2, 50, 2), (3, 3, 3), (None, 2, 2), (2, None, 2), (None, None, 4), (None, 6, 6), (6, -1, 6)]
pytestmark = pytest.mark.usefixtures("one_private_cluster")


def play(env) -> tuple[int, dict]:
    """Do nothing until the episode ends; the number of steps, and the last info."""
    env.reset(seed=0)
    for count in range(1, 20):
        *_, terminated, truncated, info = env.step(Wait(0))
        if truncated or terminated:
            assert truncated and not terminated
            return count, info
    raise AssertionError("no end")


def arguments(ours, gymnasiums) -> dict:
    given = {"max_steps": ours, "max_episode_steps": gymnasiums}
    return {"task": TASK} | {key: value for key, value in given.items() if value is not None}


@pytest.mark.parametrize(("ours", "gymnasiums", "applies"), LIMITS)
def test_one_environment(ours, gymnasiums, applies):
    with gymnasium.make(ID, **arguments(ours, gymnasiums)) as env:
        for _ in range(2):
            count, info = play(env)
            assert (count, info["terminal"], info["score"]) == (applies, "step_limit", 0.0)


@pytest.mark.parametrize(("ours", "gymnasiums", "applies"), LIMITS)
@pytest.mark.parametrize("kind", ["sync", "vector_entry_point"])
def test_vectors(ours, gymnasiums, applies, kind):
    envs = gymnasium.make_vec(ID, 2, vectorization_mode=kind, **arguments(ours, gymnasiums))
    try:
        envs.reset(seed=0)
        for count in range(1, applies + 1):
            *_, truncations, infos = envs.step([Wait(0)] * 2)
            assert truncations.tolist() == [count == applies] * 2
        assert infos["terminal"].tolist() == ["step_limit"] * 2 and infos["score"].tolist() == [0.0] * 2
    finally:
        envs.close()


def test_specs_keep_the_limit():
    with gymnasium.make(ID, task=TASK, max_steps=9, max_episode_steps=2) as env:
        spec = env.spec
        for again in (spec, EnvSpec.from_json(spec.to_json()), pickle.loads(pickle.dumps(spec))):
            with gymnasium.make(again) as copy:
                assert play(copy)[0] == 2 and copy.spec == spec
    envs = gymnasium.make_vec(spec, 2)  # the native one, which takes no additional wrappers
    envs.reset(seed=0)
    envs.step([Wait(0)] * 2)
    assert envs.step([Wait(0)] * 2)[3].all()
    envs.close()


def test_a_time_limit_by_hand_cuts_without_a_score():
    """An environment cannot know of it: docs/guides/environments.md says so."""
    with TimeLimit(gymnasium.make(ID, task=TASK, max_steps=9), 2) as env:
        count, info = play(env)
    assert (count, info["terminal"]) == (2, "")


@pytest.mark.parametrize("value", [0, -2, True, 2.0, "3"])
def test_limits_that_are_none_are_refused_when_an_environment_is_made(value):
    for make in (gymnasium.make, gymnasium.make_vec):
        with pytest.raises(ConfigurationError, match="max_steps"):
            make(ID, task=TASK, max_steps=value)
    with pytest.raises(ConfigurationError, match="max_episode_steps"):
        gymnasium.make_vec(ID, 2, task=TASK, max_episode_steps=value)
