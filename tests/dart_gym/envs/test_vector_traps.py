"""What goes wrong with `gymnasium.vector.AsyncVectorEnv` and slow, failing desktops that carry texts, does not here.

Each test names the trap: A1 to A8 of the comparison that this environment was designed by.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.core.actions import Done, Move, Wait
from dart_gym.core.errors import EpisodeStateError
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.envs.cluster_link import background_loop
from dart_gym.envs.episode_info import stack_infos
from dart_gym.envs.vector_env import DesktopVectorEnv

TASK = "fake/two-steps"


@pytest.fixture
def desktops():
    return []


@pytest.fixture
def make_envs(tmp_path, desktops):
    made = []

    def make_desktop(spec):
        desktops.append(FakeDesktop(spec))
        return desktops[-1]

    server = ClusterServer(ServerSettings(listen=f"ws+unix://{tmp_path}/s", desktops=8), make_desktop)
    background_loop().run(server.start)

    def make(num_envs: int, **arguments) -> DesktopVectorEnv:
        made.append(DesktopVectorEnv(num_envs, url=server.url, **{"task": TASK, "max_steps": 9, **arguments}))
        return made[-1]

    yield make
    for envs in made:
        envs.close()
    background_loop().run(server.stop)


def test_a1_texts_are_those_of_the_running_episode(make_envs):
    """Shared memory froze a text at its first value, so that a policy read a wrong instruction."""
    envs = make_envs(2, autoreset_mode="SAME_STEP")
    first, _ = envs.reset(seed=0)
    second, *_ = envs.step([Done(), Move(9999, 1)])
    assert second["instruction"][0] != first["instruction"][0] and second["instruction"][1] == first["instruction"][1]
    assert second["action_error"][0] == "" and "outside" in second["action_error"][1]
    third, *_ = envs.step([Move(1, 1)] * 2)
    assert third["action_error"] == ("", "") and third["instruction"] == second["instruction"]


def test_a2_a_reset_by_hand_is_not_followed_by_another(make_envs):
    """An explicit reset after an end left the autoreset flag set: the first action of the next episode was lost."""
    envs = make_envs(2, autoreset_mode="NEXT_STEP")
    envs.reset(seed=0)
    envs.step([Done(), Move(1, 1)])
    envs.reset(seed=1)
    *_, infos = envs.step([Move(1, 1)] * 2)
    assert infos["step_index"].tolist() == [1, 1]


def test_a3_a_late_answer_is_never_taken_for_the_next_one(make_envs):
    """After one timeout every later step returned the observation of the step before."""
    envs = make_envs(2)
    envs.reset(seed=0)
    (request,) = envs.send([Wait(0.3)], [0])
    assert envs.recv(timeout=0.05) == []
    with pytest.raises(EpisodeStateError, match="in flight"):
        envs.send([Move(1, 1)], [0])
    (late,) = envs.recv(timeout=5.0)
    assert late.request_id == request
    for expected in (2, 3, 4):
        (request,) = envs.send([Move(1, 1)], [0])
        (answer,) = envs.recv()
        assert (answer.request_id, answer.info["step_index"]) == (request, expected)


def test_a3_an_abandoned_answer_is_dropped(make_envs):
    envs = make_envs(2)
    envs.reset(seed=0)
    envs.send([Wait(0.2)], [0])
    envs.abandon([0])
    requests = envs.async_reset([0], tasks=["fake/click-button"], seeds=[7])
    answers = envs.recv(min_ready=1)
    assert [answer.request_id for answer in answers] == requests and answers[0].info["seed"] == 7
    assert envs.recv(timeout=0.3) == []


def test_a4_one_dead_desktop_kills_nobody_else(make_envs, desktops):
    """One exception raised in all, and even the next reset died."""
    envs = make_envs(4)
    envs.reset(seed=0)
    desktops[2].crash()
    _, _, _, truncations, infos = envs.step([Move(1, 1)] * 4)
    assert truncations.sum() == 1 and infos["env_fault"].tolist() == truncations.tolist()
    assert sorted(infos["step_index"].tolist()) == [1, 1, 1, 1]
    envs.reset(options={"reset_mask": truncations})
    _, _, _, again, infos = envs.step([Move(1, 1)] * 4)
    assert not again.any() and sorted(infos["step_index"].tolist()) == [1, 2, 2, 2]


def test_a5_each_environment_gets_its_own_task(make_envs):
    """One dict of options went to all of them."""
    names = ["fake/click-button", TASK, "fake/click-button"]
    _, infos = make_envs(3).reset(options={"task_ids": names})
    assert infos["task_id"].tolist() == names


def test_a6_no_info_is_cut_to_the_type_of_the_first(make_envs):
    """An integer score of the first environment made 0.7 of another one a 0."""
    rows = {0: {"score": float("nan"), "terminal": "", "n": 1}, 2: {"score": 0.7, "terminal": "done", "n": 2}}
    stacked = stack_infos(rows, 3)
    assert stacked["score"][2] == 0.7 and stacked["score"].dtype == np.float64 and np.isnan(stacked["score"][0])
    assert stacked["terminal"].tolist() == ["", None, "done"] and stacked["_score"].tolist() == [True, False, True]
    envs = make_envs(2)
    _, infos = envs.reset(seed=0)
    *_, later = envs.step([Done(), Move(1, 1)])
    assert set(later) == set(infos) and all(later[key].dtype == infos[key].dtype for key in infos)
    assert later["score"][0] == 0.0 and np.isnan(later["score"][1]) and later["terminal"].tolist() == ["done", ""]


def test_a7_no_action_is_ignored_unless_asked_for(make_envs):
    """The action for an environment that had ended was thrown away, and a generation with it."""
    envs = make_envs(2)
    envs.reset(seed=0)
    envs.step([Done(), Move(1, 1)])
    with pytest.raises(EpisodeStateError, match="environment 0 has no running episode"):
        envs.step([Move(1, 1)] * 2)
    *_, infos = (envs.reset(options={"reset_mask": np.array([True, False])}), envs.step([Move(1, 1)] * 2))[1]
    assert infos["step_index"].tolist() == [1, 2]  # the refused step did not move the other one


def test_a8_fast_desktops_need_not_wait_for_the_slowest(make_envs):
    envs = make_envs(3)
    envs.reset(seed=0)
    envs.send([Wait(1.0)], [0])
    started, steps = time.monotonic(), 0
    for _ in range(4):
        envs.send([Move(1, 1)] * 2, [1, 2])
        steps += len(envs.recv(min_ready=2))
    assert steps == 8 and time.monotonic() - started < 0.9
    assert [answer.env_id for answer in envs.recv()] == [0]
