"""The settings behind both environments: one list of keywords, checked once, that goes through JSON."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from dart_gym.cluster.wire import frames
from dart_gym.core.errors import ConfigurationError
from dart_gym.envs.desktop_env import DesktopEnv, OSWorldEnv
from dart_gym.envs.env_settings import EnvOptions, EnvSettings
from dart_gym.envs.vector_env import DesktopVectorEnv, OSWorldVectorEnv

pytestmark = pytest.mark.process

ID = "DartGym/Desktop-v0"
TASK = "fake/two-steps"
MACHINES = "http://10.0.0.1:5000, http://10.0.0.2:5000"


def test_the_keywords_that_editors_know_are_the_settings():
    fields = {field.name for field in dataclasses.fields(EnvSettings)}
    assert set(EnvOptions.__annotations__) == fields - {"task"}


@pytest.mark.parametrize("make", [DesktopEnv, lambda *args, **options: DesktopVectorEnv(2, *args, **options)])
@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"max_step": 3}, TypeError, "did you mean 'max_steps'"),
        ({"nonsense": 3}, TypeError, "known: task, tasks"),
        ({"codec": "gif"}, ConfigurationError, "choose one of raw, png"),
        ({"url": "ws://a,http://b"}, ConfigurationError, "http://b"),
        ({"pacing": "slow"}, ConfigurationError, "settle"),
        ({"render_mode": "human"}, ValueError, "rgb_array"),
        ({"osworld_url": "ftp://x"}, ConfigurationError, "osworld_url"),
        ({"osworld_url": "http://a:5000,http://b:5000,http://c:5000"}, ConfigurationError, "one machine for each"),
    ],
)
def test_wrong_keywords_are_refused_before_anything_starts(make, arguments, error, match):
    with pytest.raises(error, match=match):
        make(TASK, **arguments)


@pytest.mark.parametrize("kind", [OSWorldEnv, OSWorldVectorEnv])
def test_osworld_environments_take_the_same_keywords(kind, monkeypatch):
    monkeypatch.delenv("DART_GYM_OSWORLD", raising=False)
    env = kind(accessibility=True)
    assert env.observation_space["screenshot"].shape[-3:] == (1080, 1920, 3)
    assert "accessibility_tree" in env.observation_space.spaces
    env.close()


def test_every_setting_goes_through_the_json_of_a_spec():
    options = {
        "tasks": ["fake/two-steps", "fake/click-button"],
        "url": "ws://a:1,ws://b:2",
        "codec": "png",
        "width": 300,
        "height": 200,
        "max_steps": 7,
        "time_limit_s": 60.0,
        "accessibility": True,
        "deadline_s": 9.0,
        "render_mode": "rgb_array",
    }
    with gymnasium.make(ID, **options) as env:
        again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
        assert again.unwrapped.settings == env.unwrapped.settings
        assert again.observation_space == env.observation_space
        json.loads(env.spec.to_json())
        again.close()


def test_a_vector_in_a_fresh_process_needs_no_import():
    code = (
        "import gymnasium as g; e = g.make_vec('dart_gym:DartGym/Desktop-v0', num_envs=3, task='fake/two-steps', "
        "autoreset_mode='SAME_STEP', prefetch=1); print(type(e).__name__, e.num_envs, e.spec.id); e.close()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["DesktopVectorEnv", "3", ID]


def test_each_environment_of_a_vector_has_a_machine_of_its_own():
    envs = DesktopVectorEnv(2, TASK, osworld_url=MACHINES)
    assert [choice.override["osworld_url"] for choice in envs.choices] == MACHINES.split(", ")
    envs.close()


def test_a_vector_gives_accessibility_trees():
    envs = DesktopVectorEnv(2, TASK, accessibility=True)
    observations, _ = envs.reset(seed=0)
    assert envs.observation_space.contains(observations)
    assert all("push-button" in tree for tree in observations["accessibility_tree"])
    envs.async_reset()
    answers = envs.recv(min_ready=2)
    assert all(envs.single_observation_space.contains(answer.observation) for answer in answers)
    envs.close()


@pytest.mark.parametrize("codec", frames.CODECS)
def test_a_codec_can_be_chosen(codec):
    with DesktopEnv(TASK, codec=codec) as env, DesktopEnv(TASK) as reference:
        found, expected = env.reset(seed=1)[0], reference.reset(seed=1)[0]
        assert found["screenshot"].shape == expected["screenshot"].shape
        difference = abs(found["screenshot"].astype(int) - expected["screenshot"]).mean()
        assert difference == 0 if codec in ("raw", "png") else difference < 8
