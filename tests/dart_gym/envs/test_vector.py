"""`DesktopVectorEnv`: the barrier and the asynchronous face, faults, and autoreset."""

from __future__ import annotations

import copy
import pickle
import time
import tracemalloc
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.core.actions import Done, Move, Wait
from dart_gym.core.errors import ClusterError, ConfigurationError, EpisodeStateError
from dart_gym.core.outcomes import TerminalState
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.envs.cluster_link import background_loop
from dart_gym.envs.vector_env import DesktopVectorEnv, OSWorldVectorEnv

ID = "DartGym/Desktop-v0"
TASK = "fake/two-steps"


class Cluster:
    """A server in this process's background loop, whose desktops a test can break."""

    def __init__(self, path: str) -> None:
        self.desktops: list[FakeDesktop] = []
        self.server = ClusterServer(ServerSettings(listen=f"ws+unix://{path}", desktops=8), self._make)

    def _make(self, spec):
        self.desktops.append(FakeDesktop(spec))
        return self.desktops[-1]


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(str(tmp_path / "s"))
    background_loop().run(cluster.server.start)
    yield cluster
    background_loop().run(cluster.server.stop)


@pytest.fixture
def make_envs(cluster):
    made = []

    def make(num_envs: int, **arguments) -> DesktopVectorEnv:
        made.append(DesktopVectorEnv(num_envs, url=cluster.server.url, **{"task": TASK, **arguments}))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def test_a_pickle_or_copy_is_a_fresh_environment_with_the_same_settings(make_envs):
    envs = make_envs(2, max_episode_steps=1, autoreset_mode="SAME_STEP", prefetch=1)
    envs.reset(seed=0)
    for copied in (pickle.loads(pickle.dumps(envs)), copy.deepcopy(envs)):
        assert copied.reset(seed=[3, 4])[1]["seed"].tolist() == [3, 4]
        assert copied.step([Move(1, 1)] * 2)[3].all()
        assert copied.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        copied.close()
    assert not envs.step([Move(1, 1)] * 2)[2].any()
    assert pickle.loads(pickle.dumps(OSWorldVectorEnv(2, TASK))).num_envs == 2


@pytest.mark.process
def test_make_vec_gives_it_and_boots_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = gymnasium.make_vec(ID, 4, task=TASK, max_episode_steps=2)
        assert isinstance(envs, DesktopVectorEnv) and envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        observations, _ = envs.reset(seed=0)
        assert envs.observation_space.contains(observations)
        envs.step([Move(1, 1)] * 4)
        _, rewards, terminations, truncations, infos = envs.step([Move(1, 1)] * 4)
        envs.close()
    assert truncations.all() and not terminations.any() and infos["score"].tolist() == [0.0] * 4
    assert rewards.dtype == np.float64 and truncations.dtype == np.bool_


def test_64_full_hd_environments_cost_little():
    tracemalloc.start()
    started = time.process_time()
    envs = DesktopVectorEnv(64, TASK, width=1920, height=1080)
    elapsed, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    envs.close()
    assert elapsed < 1.0 and peak < 10 << 20


def test_each_environment_has_its_own_task_and_seed(make_envs):
    envs = make_envs(3, task=None, suite="fake")
    names = ["fake/two-steps", "fake/click-button", "fake/two-steps"]
    observations, infos = envs.reset(seed=7, options={"task_ids": names})
    assert infos["task_id"].tolist() == names and infos["seed"].tolist() == [7, 8, 9]
    assert len(set(observations["instruction"])) == 3
    again, _ = envs.reset(seed=[7, None, 9], options={"task_ids": names})
    assert np.array_equal(again["screenshot"][0], observations["screenshot"][0])


def test_the_oracle_solves_all(make_envs):
    envs = make_envs(4)
    envs.reset(seed=0)
    envs.step([envs.oracle(i) for i in range(4)])
    _, rewards, terminations, _, _ = envs.step([envs.oracle(i) for i in range(4)])
    assert rewards.tolist() == [1.0] * 4 and terminations.all()


def test_observations_are_fresh(make_envs):
    envs = make_envs(2, render_mode="rgb_array")
    first, _ = envs.reset(seed=0)
    copy = first["screenshot"].copy()
    second, *_ = envs.step([Move(50, 50)] * 2)
    second["screenshot"][:] = 0
    assert np.array_equal(first["screenshot"], copy) and envs.render()[0].any()


# --- resets


def test_a_mask_resets_only_some(make_envs):
    envs = make_envs(3)
    envs.reset(seed=0)
    envs.step([Move(1, 1), Done(), Move(1, 1)])
    with pytest.raises(EpisodeStateError, match="environment 1 has no running episode"):
        envs.step([Move(1, 1)] * 3)
    mask = np.array([False, True, False])
    options = {"reset_mask": mask, "task_ids": [TASK, "fake/click-button", TASK]}
    _, infos = envs.reset(options=options)
    assert infos["_task_id"].tolist() == [False, True, False] and infos["task_id"][1] == "fake/click-button"
    assert "reset_mask" in options  # the caller's dict is his
    _, _, _, _, infos = envs.step([Move(1, 1)] * 3)
    assert infos["step_index"].tolist() == [2, 1, 2]


def test_the_first_reset_needs_all(make_envs):
    with pytest.raises(EpisodeStateError, match="environment 0 was never reset"):
        make_envs(2).reset(options={"reset_mask": np.array([False, True])})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"task_id": TASK}, "did you mean 'task_ids'"),
        ({"task_ids": [TASK]}, "one value for each of 2"),
        ({"task_ids": TASK}, "one value for each of 2"),
        ({"reset_mask": [True, False]}, "bool array"),
        ({"reset_mask": np.zeros(2, np.bool_)}, "with a True"),
    ],
)
def test_wrong_options_are_refused(make_envs, options, match):
    with pytest.raises(ValueError, match=match):
        make_envs(2).reset(options=options)


def test_next_step_autoreset(make_envs):
    envs = make_envs(2, autoreset_mode="NEXT_STEP")
    envs.reset(seed=0)
    _, _, terminations, _, _ = envs.step([Done(), Move(1, 1)])
    assert terminations.tolist() == [True, False]
    _, rewards, terminations, _, infos = envs.step([Done(), Move(1, 1)])  # the first action is ignored
    assert terminations.tolist() == [False, False] and infos["step_index"].tolist() == [0, 2]
    _, _, _, _, infos = envs.step([Move(1, 1)] * 2)
    assert infos["step_index"].tolist() == [1, 3]


def test_same_step_autoreset(make_envs):
    envs = make_envs(2, autoreset_mode="SAME_STEP")
    envs.reset(seed=0)
    _, rewards, terminations, _, infos = envs.step([Done(), Move(1, 1)])
    assert terminations.tolist() == [True, False] and infos["step_index"].tolist() == [0, 1]
    assert infos["_final_obs"].tolist() == [True, False]
    assert infos["final_info"]["terminal"][0] == "done" and infos["final_obs"][0]["screenshot"].shape == (224, 168, 3)


def test_an_unknown_autoreset_mode_is_refused():
    with pytest.raises(ConfigurationError, match="NEXT_STEP"):
        DesktopVectorEnv(1, TASK, autoreset_mode="always")


def test_gymnasiums_wrappers_go_on_top(make_envs):
    envs = DictInfoToList(RecordEpisodeStatistics(make_envs(2, autoreset_mode="NEXT_STEP")))
    envs.reset(seed=0)
    *_, infos = envs.step([Done(), Done()])
    assert len(infos) == 2 and infos[0]["episode"]["l"] == 1


# --- send and recv


def test_fast_ones_run_ahead_of_slow_ones(make_envs):
    envs = make_envs(4)
    envs.reset(seed=0)
    started = time.monotonic()
    envs.send([Wait(0.5), Move(1, 1), Move(1, 1), Move(1, 1)], range(4))
    fast = envs.recv(min_ready=3)
    assert time.monotonic() - started < 0.4 and {t.env_id for t in fast} == {1, 2, 3}
    envs.send([Move(2, 2)], [1])
    assert [t.env_id for t in envs.recv()] == [1]
    (slow,) = envs.recv()
    assert slow.env_id == 0 and slow.info["step_index"] == 1 and not slow.is_reset
    assert envs.recv() == []


def test_recv_obeys_its_bounds(make_envs):
    envs = make_envs(3)
    ids = envs.async_reset(tasks=[TASK, "fake/click-button", None], seeds=[1, 2, None])
    (first,) = envs.recv(max_ready=1)
    rest = envs.recv(min_ready=9)
    assert {t.request_id for t in [first, *rest]} == set(ids) and all(t.is_reset for t in rest)
    envs.send([Wait(0.3)], [0])
    started = time.monotonic()
    assert envs.recv(timeout=0.05) == [] and time.monotonic() - started < 0.25
    assert [t.env_id for t in envs.recv(timeout=5.0)] == [0]


def test_one_request_at_a_time(make_envs):
    envs = make_envs(2)
    envs.reset(seed=0)
    envs.send([Wait(0.05)], [0])
    with pytest.raises(EpisodeStateError, match="environment 0 already has request"):
        envs.send([Move(1, 1), Move(1, 1)], [1, 0])
    envs.send([Move(1, 1)], [1])  # nothing was sent by the refused call
    assert len(envs.recv(min_ready=2)) == 2
    with pytest.raises(ValueError, match="no environment 5"):
        envs.send([Move(1, 1)], [5])
    with pytest.raises(ValueError, match="twice"):
        envs.send([Move(1, 1)] * 2, [0, 0])
    with pytest.raises(TypeError):
        envs.send(["click"], [0])


def test_an_abandoned_action_lands_nowhere(make_envs, cluster):
    envs = make_envs(2)
    envs.reset(seed=0)
    envs.send([Wait(30), Move(1, 1)], range(2))
    assert [t.env_id for t in envs.recv()] == [1]
    envs.abandon([0])
    assert envs.recv(timeout=1.0) == []
    with pytest.raises(EpisodeStateError, match="environment 0 has no running episode"):
        envs.send([Move(1, 1)], [0])
    envs.async_reset([0])
    (reset,) = envs.recv()
    assert reset.result.terminal is None
    envs.send([Move(1, 1)], [0])
    assert envs.recv()[0].info["step_index"] == 1
    assert len(cluster.desktops) == 3  # the interrupted desktop was thrown away


# --- faults


def test_a_broken_desktop_concerns_nobody_else(make_envs, cluster):
    envs = make_envs(8)
    envs.reset(seed=0)
    cluster.desktops[3].crash()
    observations, rewards, terminations, truncations, infos = envs.step([Move(1, 1)] * 8)
    broken = np.flatnonzero(truncations)
    assert len(broken) == 1 and not terminations.any() and rewards.sum() == 0
    assert infos["env_fault"].sum() == 1 and infos["env_fault"][broken[0]] and np.isnan(infos["score"]).all()
    assert "crashed" in observations["action_error"][broken[0]]
    _, infos = envs.reset(options={"reset_mask": truncations})
    assert not infos["env_fault"][broken[0]]
    _, _, _, truncations, _ = envs.step([Move(1, 1)] * 8)
    assert not truncations.any()


def test_a_reset_that_fails_is_a_fault(make_envs, cluster, monkeypatch):
    envs = make_envs(2)
    envs.reset(seed=0)
    cluster.desktops[0].crash()
    envs.step([Move(1, 1)] * 2)

    async def fail(self, *, timeout: float = 60.0) -> None:
        raise OSError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(FakeDesktop, "start", fail)
        faulty = [t for t in (envs.async_reset(), envs.recv(min_ready=2))[1] if t.result.terminal is not None]
    assert [t.result.terminal for t in faulty] == [TerminalState.ENV_ERROR] and "no memory" in faulty[0].info[
        "action_error"
    ]
    _, infos = envs.reset(seed=0)
    assert not infos["env_fault"].any()


def test_what_a_person_must_fix_is_raised(tmp_path, monkeypatch):
    def impatient(url, token, settings):
        return ClusterClient(url, token, ClientSettings(reconnect_s=0.1))

    monkeypatch.setattr("dart_gym.envs.cluster_link.ClusterClient", impatient)
    envs = DesktopVectorEnv(2, TASK, url=f"ws+unix://{tmp_path}/nobody.sock")
    with pytest.raises(ClusterError, match="dart-gym serve"):
        envs.reset(seed=0)
    envs.close()


def test_close_interrupts_what_is_under_way(make_envs, cluster):
    envs = make_envs(2)
    envs.reset(seed=0)
    envs.send([Wait(30), Wait(30)], range(2))
    started = time.monotonic()
    envs.close()
    assert time.monotonic() - started < 5.0
    with pytest.raises(EpisodeStateError, match="closed"):
        envs.async_reset()


@pytest.mark.desktop
def test_real_desktops_side_by_side():
    envs = DesktopVectorEnv(2, "miniwob/click-test")
    try:
        _, infos = envs.reset(seed=0)
        assert not infos["env_fault"].any(), infos["action_error"]
        _, rewards, terminations, _, infos = envs.step([envs.oracle(i) for i in range(2)])
        assert rewards.tolist() == [1.0, 1.0] and terminations.all() and not infos["env_fault"].any()
    finally:
        envs.close()
