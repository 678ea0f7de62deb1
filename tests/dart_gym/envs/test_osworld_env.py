"""`DartGym/OSWorld-v0`, pacing, and what Gymnasium does with environments: specs, checks, videos."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordVideo

import dart_gym
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.core.errors import ConfigurationError, UnknownTaskError
from dart_gym.desktops.base.desktop import DesktopSpec, SettlePolicy, SettleResult
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.sessions import reset_request
from dart_gym.sessions.reset_request import OSWORLD, SETTLE, Pacing, describe, pacing_named, resolve_task
from dart_gym.sessions.session import Session
from dart_gym.sessions.slot import Slot
from dart_gym.tasks.catalog import registry

ID = "DartGym/OSWorld-v0"
BUNDLED = Path(__file__).parents[2] / "data/osworld"
SIZE = {"width": 640, "height": 480}
pytestmark = pytest.mark.usefixtures("one_private_cluster")


@pytest.fixture
def read_anew():
    """Tasks are read when they are asked for, before and after the test."""
    registry.forget_suites()
    yield
    registry.forget_suites()


@pytest.fixture
def no_tasks(monkeypatch, read_anew):
    monkeypatch.delenv("DART_GYM_OSWORLD", raising=False)


@pytest.fixture
def bundled_tasks(monkeypatch, read_anew):
    monkeypatch.setenv("DART_GYM_OSWORLD", str(BUNDLED))


# --- tasks


def test_without_tasks_an_environment_can_be_made_and_says_what_a_reset_needs(no_tasks):
    with gymnasium.make(ID) as env:
        assert env.observation_space["screenshot"].shape == (1080, 1920, 3)
        with pytest.raises(UnknownTaskError, match="DART_GYM_OSWORLD.*task_id or task"):
            env.reset()
        with pytest.raises(UnknownTaskError, match="has no tasks"):
            env.reset(options={"suite": "osworld"})


def test_tasks_are_drawn_from_osworlds_folder(bundled_tasks):
    with gymnasium.make(ID) as env:
        choice = env.unwrapped.choice
        assert (
            len(choice.task_ids) + len(choice.skipped) == 54 and len(choice.task_ids) >= 8
        )  # without the applications
        assert all(task.startswith("osworld/") for task in choice.task_ids)
        drawn = {choice.choose(np.random.default_rng(seed), {"suite": "osworld"}) for seed in range(20)}
        assert len(drawn) > 5 and drawn <= set(choice.task_ids)


def test_a_task_may_be_fixed(bundled_tasks):
    task = "osworld/c288e301-e626-4b98-a1ab-159dcb162af5"
    with gymnasium.make(ID, task=task) as env:
        assert env.unwrapped.choice.task_ids == (task,)


def test_a_suite_may_be_asked_for_by_a_reset():
    with gymnasium.make("DartGym/Desktop-v0", task="fake/two-steps") as env:
        drawn = {env.reset(seed=seed, options={"suite": "fake"})[1]["task_id"] for seed in range(8)}
    assert drawn == {"fake/click-button", "fake/two-steps"}


# --- Gymnasium


@pytest.mark.process
@pytest.mark.parametrize("environment_id", ["DartGym/Desktop-v0", ID])
def test_a_spec_survives_json_and_a_fresh_process(environment_id):
    with gymnasium.make(environment_id, **({"task": "fake/two-steps"} if "Desktop" in environment_id else SIZE)) as env:
        text, shape = env.spec.to_json(), env.observation_space["screenshot"].shape
    code = (
        "import sys, gymnasium, dart_gym\n"
        "from gymnasium.envs.registration import EnvSpec\n"
        "env = gymnasium.make(EnvSpec.from_json(sys.stdin.read()))\n"
        "print(env.spec.id, env.observation_space['screenshot'].shape)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == f"{environment_id} {shape}"


def test_many_environments_make_a_vector():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = gymnasium.make_vec(ID, num_envs=2, task="fake/two-steps")
    observations, infos = envs.reset(seed=0)
    assert observations["screenshot"].shape == (2, 224, 168, 3) and list(infos["pacing"]) == ["settle"] * 2
    envs.close()


@pytest.mark.thorough
@pytest.mark.desktop
def test_gymnasiums_checker_has_nothing_to_say_about_an_osworld_desktop(tmp_path):
    task = {
        "id": "file",
        "instruction": "Nothing to do.",
        "config": [{"type": "execute", "parameters": {"command": ["touch", "/home/user/x"]}}],
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": ["ls", "/home/user/x"]},
            "expected": {"type": "rule", "rules": {"expected": "/home/user/x\n"}},
        },
        "dart": {"desktop": {"profile": "bare", **SIZE}},
    }
    path = tmp_path / "file.json"
    path.write_text(json.dumps(task))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(ID, task=str(path), render_mode="rgb_array")
        check_env(env.unwrapped, skip_render_check=False)
        env.reset(seed=0)
        assert env.step(dart_gym.Done())[1:4] == (1.0, True, False)
        env.close()


@pytest.mark.process
def test_videos_are_recorded(tmp_path):
    inner = gymnasium.make("DartGym/Desktop-v0", task="fake/two-steps", render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with RecordVideo(inner, str(tmp_path / "videos"), episode_trigger=lambda episode: True) as env:
            env.reset(seed=0)
            for _ in range(2):
                env.step(env.unwrapped.oracle())
    (video,) = tmp_path.glob("videos/*.mp4")
    assert video.stat().st_size > 1000


# --- pacing


class Restless(FakeDesktop):
    """A screen that never settles."""

    async def settle(self, policy: SettlePolicy) -> SettleResult:
        return SettleResult(stable=False, waited_s=policy.max_ms / 1e3, frames=9)


async def _episode(desktop_type, pacing_name):
    slot = Slot("test", desktop_type)
    async with Session(slot) as session:
        first = await session.reset("fake/two-steps", seed=0, pacing=pacing_name)
        second = await session.step(dart_gym.Move(1, 1))
    await slot.close()
    return first, second


async def test_a_screen_that_never_settles_is_said_in_the_info():
    _, result = await _episode(Restless, None)
    assert (result.info["pacing"], result.info["settled"]) == ("settle", False)
    assert result.info["settle_s"] > 0


async def test_osworlds_pauses_are_kept_and_recorded(monkeypatch):
    slept: list[float] = []

    async def note(seconds):
        slept.append(seconds)

    monkeypatch.setattr(reset_request.asyncio, "sleep", note)
    first, second = await _episode(FakeDesktop, "osworld")
    assert [seconds for seconds in slept if seconds > 1] == [60.0, 2.0]
    assert first.info["pacing"] == second.info["pacing"] == "osworld"
    assert (first.info["settle_s"], second.info["settle_s"]) == (60.0, 2.0) and second.info["settled"]


async def test_pacing_waits_before_it_looks():
    desktop = FakeDesktop(DesktopSpec(kind="fake", width=50, height=50))
    await desktop.start()
    waited = await Pacing("x", after_action_s=0.01).wait(desktop, SettlePolicy(), 0.01)
    assert waited.stable and waited.waited_s == pytest.approx(0.01)
    assert describe(SETTLE, None) == {"pacing": "settle", "settled": True, "settle_s": 0.0}


def test_pacings_have_names():
    assert (pacing_named(None), pacing_named("osworld")) == (SETTLE, OSWORLD)
    with pytest.raises(ConfigurationError, match="choose one of settle, osworld"):
        pacing_named("slow")
    with pytest.raises(ConfigurationError, match="unknown pacing"):
        gymnasium.make("DartGym/Desktop-v0", task="fake/two-steps", pacing="slow")


def test_the_info_of_an_environment_tells_the_pacing():
    with gymnasium.make("DartGym/Desktop-v0", task="fake/two-steps") as env:
        _, info = env.reset(seed=0)
        assert (info["pacing"], info["settled"]) == ("settle", True) and not math.isnan(info["settle_s"])
        assert env.step(dart_gym.Move(1, 1))[4]["pacing"] == "settle"


# --- machines of OSWorld


def test_an_address_replaces_the_desktop_of_a_task():
    task = resolve_task({"id": "a", "instruction": ""}, {"osworld_url": "http://vm:5000", "width": 800})
    assert (task.desktop.kind, task.desktop.url, task.desktop.width) == ("osworld", "http://vm:5000", 800)
    with pytest.raises(ConfigurationError, match="http://host:5000"):
        resolve_task({"id": "a", "instruction": ""}, {"osworld_url": "vm:5000"})


@pytest.mark.process
async def test_a_cluster_lets_clients_name_only_the_machines_of_its_operator(tmp_path):
    listen = f"ws+unix://{tmp_path}/s"
    settings = ServerSettings(listen=listen, desktops=1, osworld_urls=("http://127.0.0.1:1",))
    async with ClusterServer(settings), ClusterClient(listen).session() as session:
        for url, allowed in (("http://169.254.169.254", False), ("http://127.0.0.1:1", True)):
            reset = session.reset("fake/two-steps", seed=0, desktop={"osworld_url": url}, deadline_s=1.0)
            if allowed:
                assert (await asyncio.wait_for(reset, 20)).terminal == "env_error"  # nobody is there
            else:
                with pytest.raises(ConfigurationError, match="--osworld-url"):
                    await reset


@pytest.mark.desktop
def test_the_accessibility_tree_is_part_of_observations_when_asked_for():
    raw = {
        "id": "tree",
        "instruction": "Look.",
        "config": [{"type": "launch", "parameters": {"command": ["gnome-calculator"]}}],
        "evaluator": {"func": "infeasible"},
    }
    env = gymnasium.make("DartGym/OSWorld-v0", accessibility=True)
    try:
        observation, info = env.reset(seed=0, options={"task": raw})
        assert env.observation_space.contains(observation)
        assert 'name="Calculator"' in observation["accessibility_tree"] and info["timing/accessibility"] > 0
        observation, *_ = env.step(dart_gym.Press(keys=("5",)))
        assert observation["accessibility_tree"].startswith("<desktop-frame")
    finally:
        env.close()
