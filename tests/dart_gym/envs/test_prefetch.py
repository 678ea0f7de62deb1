"""SAME_STEP with episodes prepared ahead: the same episodes as without, and no wait for a reset."""

from __future__ import annotations

import asyncio
import time

import pytest

from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.core.actions import Done, Move
from dart_gym.core.errors import ConfigurationError, DesktopError
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.envs.cluster_link import background_loop
from dart_gym.envs.vector_env import DesktopVectorEnv
from dart_gym.tasks.suites.fake_suite import FakeScenario
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.process

RESET_S = 0.2


class Resets:
    """Makes the resets of fake desktops slow, and lets some fail once."""

    def __init__(self, monkeypatch) -> None:
        self.failing: set[int] = set()  # seeds
        self.failed: list[int] = []
        self._prepare = FakeScenario.prepare
        monkeypatch.setattr(FakeScenario, "prepare", self._slow_prepare())

    def _slow_prepare(self):
        async def prepare(scenario, desktop, task, seed):
            await asyncio.sleep(RESET_S)  # what a real desktop takes
            if seed in self.failing:
                self.failing.remove(seed)
                self.failed.append(seed)
                raise DesktopError("broken by the test")
            return await self._prepare(scenario, desktop, task, seed)

        return prepare


@pytest.fixture
def resets(monkeypatch):
    return Resets(monkeypatch)


@pytest.fixture
def make_envs(tmp_path, resets):
    made, servers = [], []

    def make(num_envs: int, *, desktops: int = 8, **arguments) -> DesktopVectorEnv:
        url = f"ws+unix://{tmp_path}/s{len(servers)}"
        servers.append(ClusterServer(ServerSettings(listen=url, desktops=desktops), FakeDesktop))
        background_loop().run(servers[-1].start)
        options = {"suite": "fake", "autoreset_mode": "SAME_STEP", "max_steps": 9, **arguments}
        made.append(DesktopVectorEnv(num_envs, url=url, **options))
        made[-1].server = servers[-1]
        return made[-1]

    yield make
    for envs in made:
        envs.close()
    for server in servers:
        background_loop().run(server.stop)


def wait_until_prepared(envs: DesktopVectorEnv, count: int) -> None:
    """Until so many desktops have an episode, and none is busy. Steps notice the spare that has got its slot."""
    deadline = time.monotonic() + 10.0
    while True:
        found = envs.server.status()["desktops"]
        if sum(d["episodes"] for d in found) >= count and all(d["phase"] in ("idle", "held") for d in found):
            return
        assert time.monotonic() < deadline
        envs.step([Move(1, 1)] * envs.num_envs)


def episodes(envs: DesktopVectorEnv, steps: int, seed: int = 5) -> list[tuple[str, int]]:
    """Task and seed of every episode, in the order of their first observations, when environment i ends each i + 2."""
    _, infos = envs.reset(seed=seed)
    seen = list(zip(infos["task_id"], infos["seed"].tolist(), strict=True))
    lengths = [0] * envs.num_envs
    for _ in range(steps):
        ends = [length >= i + 1 for i, length in enumerate(lengths)]
        _, _, terminations, _, infos = envs.step([Done() if end else Move(1, 1) for end in ends])
        assert terminations.tolist() == ends and not infos["env_fault"].any()
        assert infos["step_index"].tolist() == [
            0 if end else length + 1 for end, length in zip(ends, lengths, strict=True)
        ]
        lengths = infos["step_index"].tolist()
        seen += [(infos["task_id"][i], int(infos["seed"][i])) for i, end in enumerate(ends) if end]
    return seen


def test_who_gets_which_episode_does_not_depend_on_prefetching(make_envs):
    found = {spares: episodes(make_envs(3, prefetch=spares), 6) for spares in (0, 1, 2)}
    assert found[0] == found[1] == found[2]
    assert len({seed for _, seed in found[0]}) == len(found[0]) == 9
    assert {task for task, _ in found[0]} == {"fake/click-button", "fake/two-steps"}


def test_a_seed_begins_the_draws_anew(make_envs):
    envs = make_envs(2, prefetch=1)
    assert episodes(envs, 4) == episodes(envs, 4) != episodes(envs, 4, seed=6)


def test_an_episode_that_was_prepared_is_there_at_once(make_envs):
    waits = {}
    for spares in (0, 1):
        envs = make_envs(2, prefetch=spares, max_steps=100_000)
        envs.reset(seed=0)
        wait_until_prepared(envs, 2 + spares)
        started = time.monotonic()
        observations, *_, infos = envs.step([Done(), Move(1, 1)])
        waits[spares] = time.monotonic() - started
        assert infos["step_index"][0] == 0 < infos["step_index"][1] and infos["final_info"]["terminal"][0] == "done"
        assert observations["instruction"][0] != infos["final_obs"][0]["instruction"]
    assert waits[1] < RESET_S / 2 < RESET_S <= waits[0]


def test_spares_that_find_the_cluster_full_hold_nothing_up(make_envs, caplog):
    found = episodes(make_envs(2, desktops=2, prefetch=1, deadline_s=0.5), 6)
    assert found == episodes(make_envs(2), 6)
    assert "the cluster needs more than environments" in caplog.text


def test_an_episode_that_cannot_be_prepared_is_started_in_place(make_envs, resets):
    expected = episodes(make_envs(2), 5)
    resets.failing = {seed for _, seed in expected[3:5]}
    assert episodes(make_envs(2, prefetch=1), 5) == expected
    assert resets.failed  # each once, on a spare


def test_a_reset_that_failed_in_place_is_done_again_by_the_next_step(make_envs, resets):
    envs = make_envs(2)
    envs.reset(seed=0)
    seed = envs.np_random.spawn(1)[0]
    seed.integers(2)  # the task
    resets.failing = {int(seed.integers(2**31 - 1))}
    envs._automatic = None  # what the next step draws, this test has drawn
    envs.reset(seed=0)
    _, _, _, _, infos = envs.step([Done(), Move(1, 1)])
    assert infos["env_fault"].tolist() == [True, False]
    _, _, _, truncations, infos = envs.step([Move(1, 1)] * 2)
    assert infos["step_index"].tolist() == [0, 2] and not truncations.any() and not infos["env_fault"].any()


def test_closing_gives_the_spares_back_too(make_envs):
    envs = make_envs(2, prefetch=2)
    envs.reset(seed=0)
    envs.close()
    wait_until(lambda: all(desktop["phase"] == "idle" for desktop in envs.server.status()["desktops"]), 5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"autoreset_mode": "DISABLED"},
        {"autoreset_mode": "NEXT_STEP"},
        {"prefetch": -1},
        {"osworld_url": "http://x:5000"},
    ],
)
def test_it_needs_same_step_and_desktops_to_spare(arguments):
    with pytest.raises(ConfigurationError, match="prefetch"):
        DesktopVectorEnv(1, "fake/two-steps", **{"prefetch": 1, "autoreset_mode": "SAME_STEP", **arguments})
