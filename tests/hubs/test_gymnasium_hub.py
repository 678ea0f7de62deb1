"""Stable-Baselines3 and Minari on drawn desktops, through the wrappers of `integrations/gymnasium`."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
import torch

import dart_gym  # noqa: F401  registers the environments
from dart_gym.core.actions import Click, Drag
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


def test_a_resized_screen_is_clicked_where_it_shows_things():
    from dart_gym_wrappers import DiscreteClicks, ResizeScreenshot

    env = ResizeScreenshot(gym.make("DartGym/Desktop-v0", task="fake/two-steps", render_mode="rgb_array"), (56, 42))
    observation, _ = env.reset(seed=3)
    assert env.observation_space.contains(observation) and observation["screenshot"].shape == (56, 42, 3)
    assert env.render().shape == (224, 168, 3)
    assert env.action(Click(41, 55)) == Click(166, 222) and env.action({"kind": "press", "keys": ["a"]}).keys == ("a",)
    assert env.action(Drag(((0, 0), (10, 20)))).path == ((2, 2), (42, 82)) and env.action(Click()) == Click()
    for _ in range(2):
        whole = env.unwrapped.oracle()
        _, reward, ended, _, _ = env.step({"kind": "click", "x": whole.x // 4, "y": whole.y // 4})
    assert (reward, ended) == (1.0, True)
    env.reset(seed=3)
    _, _, _, _, info = env.step(Click(42, 0))
    assert "outside" in info["action_error"]
    grid = DiscreteClicks(env, 3, 2)  # one wrapper around the other: the same place on the whole screen
    assert [env.action(grid.action(cell)) for cell in (0, 5)] == [Click(42, 38), Click(126, 186)]
    env.close()


def test_blank_cells_are_masked_when_asked():
    from dart_gym_wrappers import DiscreteClicks

    env = DiscreteClicks(gym.make("DartGym/Desktop-v0", task=TASK), 3, 2, blank=False)
    assert env.action_masks().all()  # nothing was seen yet
    observation, _ = env.reset(seed=1)
    halves = [np.array_split(band, 2, axis=1) for band in np.array_split(observation["screenshot"], 3, axis=0)]
    colors = [len(np.unique(cell.reshape(-1, 3), axis=0)) for band in halves for cell in band]
    assert env.action_masks().tolist() == [count > 1 for count in colors] and 4 <= env.action_masks().sum() <= 5
    env.close()


def test_a_tree_tells_places_of_the_whole_screen():
    from dart_gym_wrappers import ElementActions, ResizeScreenshot

    inner = gym.make("DartGym/Desktop-v0", task="fake/two-steps", accessibility=True)
    with pytest.raises(ValueError, match="put ResizeScreenshot around ElementActions"):
        ElementActions(ResizeScreenshot(inner, (56, 42)))
    env = ResizeScreenshot(ElementActions(inner, most=8), (56, 42))
    observation, _ = env.reset(seed=2)
    names = [name for name, _ in env.env.elements]
    for label in observation["instruction"].split("'")[1::2]:
        observation, reward, ended, _, _ = env.step(names.index(label))
    assert (reward, ended, observation["screenshot"].shape) == (1.0, True, (56, 42, 3))
    env.close()


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


@pytest.mark.timeout(900)
def test_ppo_in_one_file_learns_clicks_in_order(record_property):
    """Guessing scores one in twelve."""
    started = time.process_time()
    share = example().main(example().Args())
    record_property("cpu_s", time.process_time() - started)
    print(f"{share:.0%} after {time.process_time() - started:.0f} s of this process's processor time")
    assert share >= 0.8


def example():
    """`examples/ppo_in_one_file.py` as a module."""
    return importlib.import_module("examples.ppo_in_one_file")


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
