"""`dart-gym bench cluster`, shortened: every key is measured, and wrong replies are noticed."""

from __future__ import annotations

import os
from array import array

import numpy as np
import pytest

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.wire import frames
from dart_gym.core.actions import Done, Move
from dart_lab.gym import cluster_bench, long_tail
from dart_lab.gym.cluster_server_process import BenchServer

pytestmark = pytest.mark.process


@pytest.fixture
def picture():
    return np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)


async def test_every_codec_is_compared_with_a_session_in_process(picture):
    keys = await cluster_bench.overhead(picture, steps=3)
    assert keys["step_ms_in_process"] > 0
    assert {f"overhead_ms_{codec}" for codec in frames.CODECS} <= keys.keys()
    assert all(keys[f"step_vs_in_process_{codec}"] > 1 for codec in frames.CODECS)
    assert keys["overhead_ms_png"] > keys["overhead_ms_raw"]  # noise does not compress, but it takes time to try


async def test_drawn_desktops_show_the_picture(picture):
    async with BenchServer(1, picture) as server, ClusterClient(server.url).session() as session:
        result = await session.reset("fake/two-steps", seed=0, desktop={"width": 400, "height": 300})
        assert (result.observation.screenshot == picture).mean() > 0.99  # but for the pointer
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


async def test_many_fakes_answer_each_request():
    keys = await cluster_bench.many_fakes(count=8, steps=400)
    assert keys["desync_steps"] == 400 and keys["desync_wrong"] == 0
    assert keys["fake_8_steps_per_s"] > 10 and keys["fake_8_memory_mb"] > 10
    assert 0 < keys["fake_8_p50_ms"] <= keys["fake_8_p99_ms"]


class OneLate:
    """A session whose replies come one request late."""

    def __init__(self, session):
        self._session, self._last = session, None

    async def reset(self, *args, **options):
        self._last = await self._session.reset(*args, **options)
        return self._last

    async def step(self, action):
        late, self._last = self._last, await self._session.step(action)
        return late


async def test_late_replies_are_noticed():
    async with BenchServer(1) as server, ClusterClient(server.url).session() as session:
        driver = cluster_bench.Desync(OneLate(session), 0)
        await driver.start()
        await driver.run(20, array("d"))
    assert driver.wrong == 20


def test_the_workload_is_long_tailed_and_the_same_each_time():
    episodes = [long_tail.episode(number) for number in range(3000)]
    assert episodes[7] == long_tail.episode(7) and episodes[7] != episodes[8]
    thoughts = np.concatenate([one.think_s for one in episodes])
    assert 0.09 < np.median(thoughts) < 0.11 and 4 < np.quantile(thoughts, 0.99) < 10
    assert thoughts.max() <= long_tail.THINK_CAP_S
    one = max(episodes, key=lambda one: len(one.think_s))
    actions = [one.action(step) for step in range(len(one.think_s))]
    assert actions[-1] == Done() and all(isinstance(action, Move) for action in actions[:-1])


@pytest.mark.thorough
@pytest.mark.desktop
async def test_three_ways_to_drive_real_desktops(monkeypatch):
    monkeypatch.setattr(long_tail, "THINK_MEDIAN_S", 0.02)
    keys = await cluster_bench.three_ways(desktops=2, seconds=3.0)
    for way in ("barrier", "send_recv", "coroutines"):
        assert keys[f"{way}_episodes_per_min"] > 0
    assert keys["coroutines_vs_barrier"] == pytest.approx(
        keys["coroutines_episodes_per_min"] / keys["barrier_episodes_per_min"]
    )
