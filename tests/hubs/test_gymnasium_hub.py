"""Stable-Baselines3 and Minari on drawn desktops, through the wrappers of `integrations/gymnasium`."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
import torch

import dart_gym  # noqa: F401  registers the environments
from tests.hubs.conftest import ROOT

pytestmark = [pytest.mark.hubs, pytest.mark.usefixtures("one_private_cluster")]
TASK = "fake/click-button"  # a drawn click-test: one of four buttons is asked for
COLORS = ("red", "green", "blue", "yellow")


def small(**options):
    from dart_gym_wrappers import DiscreteClicks, PixelsAndWords

    env = gym.make("DartGym/Desktop-v0", task=TASK, **options)
    return PixelsAndWords(DiscreteClicks(env, 3, 2), 3, 2, COLORS)


def elementary():
    from dart_gym_wrappers import ElementActions

    return ElementActions(gym.make("DartGym/Desktop-v0", task="fake/two-steps", accessibility=True), most=8)


def test_a_grids_cell_is_a_click_in_its_middle_and_the_vector_is_in_its_space():
    env = small()
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation) and observation[-4:].sum() == 1
    space = env.unwrapped.action_space
    clicks = [env.env.action(cell) for cell in range(6)]
    assert (clicks[0].x, clicks[0].y) == (space.width // 4, space.height // 6)
    assert (clicks[5].x, clicks[5].y) == (3 * space.width // 4, 5 * space.height // 6)
    assert env.get_wrapper_attr("action_masks")().all()
    env.close()


def test_an_oracle_of_elements_scores_1_and_what_is_no_element_does_nothing():
    env = elementary()
    observation, _ = env.reset(seed=2)
    assert env.action_masks().tolist() == [True] * 4 + [False] * 4
    _, reward, ended, _, info = env.step(7)
    assert (reward, ended, info["action_error"]) == (0.0, False, "")
    names = [name for name, _ in env.elements]
    for label in observation["instruction"].split("'")[1::2]:
        _, reward, ended, _, info = env.step(names.index(label))
    assert (reward, ended, info["score"]) == (1.0, True, 1.0)
    env.close()


def test_elements_need_a_tree():
    from dart_gym_wrappers import ElementActions

    with pytest.raises(ValueError, match="accessibility=True"):
        ElementActions(gym.make("DartGym/Desktop-v0", task=TASK))


def test_stable_baselines3_accepts_the_spaces_and_trains_a_little():
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_checker import check_env

    env = small()
    check_env(env, skip_render_check=True)
    agent = PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=0)
    before = [weights.clone() for weights in agent.policy.parameters()]
    agent.learn(64)
    assert agent.num_timesteps == 64
    assert any(not old.equal(new) for old, new in zip(before, agent.policy.parameters(), strict=True))
    env.close()


@pytest.mark.timeout(900)
def test_an_agent_of_stable_baselines3_learns_to_click_what_is_asked_for(record_property):
    """Guessing scores one in six; 12,000 episodes take a minute and a half of one idle core."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    envs = VecNormalize(DummyVecEnv([small] * 8), norm_reward=False)
    options = {"gamma": 0.0, "gae_lambda": 0.0, "n_steps": 64, "batch_size": 128, "learning_rate": 1e-3}
    shape = {"net_arch": [256, 256], "activation_fn": torch.nn.ReLU}
    agent = PPO("MlpPolicy", envs, seed=0, policy_kwargs=shape, **options)
    started = time.process_time()
    agent.learn(12_000)
    record_property("cpu_s", time.process_time() - started)
    envs.training = False
    success, _ = evaluate_policy(agent, envs, n_eval_episodes=100, warn=False)
    record_property("success", success)
    print(f"{success:.0%} after {time.process_time() - started:.0f} s of this process's processor time")
    assert success >= 0.8
    envs.close()


def test_minari_keeps_episodes_and_gives_them_back(tmp_path, monkeypatch):
    import minari
    from dart_gym_wrappers import record_minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = small()
    made = record_minari(
        env, "desktop/click-button-v0", range(4), lambda seen: 0, author="a test", code_permalink="none"
    )
    assert made.total_episodes == 4
    for seed, episode in enumerate(minari.load_dataset("desktop/click-button-v0").iterate_episodes()):
        assert np.array_equal(episode.observations[0], env.reset(seed=seed)[0])
        assert episode.actions.tolist() == [0] and episode.rewards.tolist() == [env.step(0)[1]]
    env.close()


def test_the_run_of_the_readme_works():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "integrations/gymnasium/README.md").read_text(), re.DOTALL)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=110)
