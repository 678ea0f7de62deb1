"""A desktop whose actions are texts: what a text does, and that none of them raises."""

import warnings

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

import dart_agent
import dart_gym
from dart_agent.formats import get_format
from dart_agent.text_actions import TextActions
from dart_gym.core.errors import ConfigurationError

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_private_cluster")]


@pytest.fixture
def make():
    made = []

    def build(**options) -> TextActions:
        env = TextActions(gym.make("DartGym/Desktop-v0", task="fake/two-steps"), **options)
        made.append(env)
        return env

    yield build
    for env in made:
        env.close()


def oracle_text(env: TextActions, name: str = "ui_tars") -> str:
    return get_format(name).format(env.unwrapped.oracle(), env.screen, "I know.")


def test_a_task_is_solved_in_words(make):
    env = make()
    _, info = env.reset(seed=3)
    assert info["thought"] == ""
    done, total = False, 0.0
    for _ in range(10):
        observation, reward, terminated, truncated, info = env.step(oracle_text(env))
        assert info["thought"] == "I know."
        assert observation["action_error"] == info["action_error"] == ""
        total += reward
        done = terminated or truncated
        if done:
            break
    assert (done, total, info["score"]) == (True, 1.0, 1.0)


def test_other_formats_and_lazy_import(make):
    assert dart_agent.TextActions is TextActions
    env = make(format="qwen:3")
    env.reset(seed=3)
    env.step(oracle_text(env, "qwen:3"))
    assert env.spec is not None


def test_gymnasium_s_own_checks(make):
    env = make(format="qwen:3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of every wrapper
        check_env(env, skip_render_check=True)
    again = gym.make(env.spec)
    try:
        assert isinstance(again, TextActions)
        assert again.format.name == "qwen"
    finally:
        again.close()


@pytest.mark.parametrize(
    "text", ["", "nonsense", "Action: click(start_box='(a,b)')", "Action: jump()", "\0" * 9, "x" * 99_999]
)
def test_what_cannot_be_read_is_an_action_error(make, text):
    env = make()
    before, _ = env.reset(seed=3)
    observation, reward, terminated, truncated, info = env.step(text)
    assert info["action_error"]
    assert observation["action_error"] == info["action_error"]
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (observation["screenshot"] == before["screenshot"]).all(), "nothing was carried out"
    assert env.observation_space.contains(observation)
    assert env.action_space.contains(text)


def test_a_text_with_an_error_is_not_carried_out_in_part(make):
    env = make()
    before, _ = env.reset(seed=3)
    click = oracle_text(env)
    observation, *_, info = env.step(f"{click}\n\njump()")
    assert "unknown action 'jump'" in info["action_error"]
    assert (observation["screenshot"] == before["screenshot"]).all()


def test_several_actions_stop_at_the_first_that_fails(make):
    env = make()
    env.reset(seed=3)
    *_, info = env.step("Action: click(start_box='(5000,5000)')\n\nfinished()")
    assert info["action_error"]
    assert "terminal" not in info or not info["terminal"]


def test_several_actions_are_one_step(make):
    env = make()
    env.reset(seed=3)
    _, _, terminated, truncated, _ = env.step("Action: wait(seconds='0')\n\nfinished(content='no')\n\nwait()")
    assert terminated or truncated


def test_other_environments_are_refused():
    with pytest.raises(ConfigurationError, match="desktop environment"):
        TextActions(gym.make("CartPole-v1"))


def test_unknown_formats_suggest(make):
    with pytest.raises(ConfigurationError, match="did you mean 'ui_tars'"):
        make(format="ui-tars")


def test_the_first_action_of_a_text(make):
    env = make(image=(640, 480))
    width, height = env.unwrapped.action_space.width, env.unwrapped.action_space.height
    assert env.action("Action: click(start_box='(320,240)')") == dart_gym.Click(width // 2, height // 2)
    assert env.action("nonsense") == dart_gym.Wait(0.0)
