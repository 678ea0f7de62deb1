"""`dart_gym.connect`: sessions for who writes coroutines."""

from __future__ import annotations

import asyncio

import pytest

import dart_gym
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.core.errors import ConfigurationError
from dart_gym.desktops.fake_desktop import FakeDesktop

pytestmark = pytest.mark.process


async def play(cluster: dart_gym.ClusterClient, seed: int) -> float | None:
    async with cluster.session() as session:
        result = await session.reset("fake/two-steps", seed=seed)
        while result.terminal is None:
            result = await session.step(await session.oracle())
        assert result.evaluation is not None
        return result.evaluation.score


async def test_a_private_cluster_serves_one_coroutine_per_desktop():
    async with dart_gym.connect() as cluster:
        assert await asyncio.gather(*(play(cluster, seed) for seed in range(6))) == [1.0] * 6
        assert isinstance(cluster, dart_gym.ClusterClient)
        url = cluster.url
    with pytest.raises(dart_gym.core.errors.ClusterError):
        await ClusterClient(url, settings=ClientSettings(reconnect_s=0.0)).status()  # it ended with the block


async def test_a_cluster_by_url_token_and_codec(tmp_path, monkeypatch):
    monkeypatch.setenv("DART_GYM_TEST_TOKEN", "s3cret")
    settings = ServerSettings(listen="ws://127.0.0.1:0", desktops=2, token="s3cret")
    async with ClusterServer(settings, FakeDesktop) as server:
        async with dart_gym.connect(server.url, token_env="DART_GYM_TEST_TOKEN", codec="png") as cluster:
            assert await play(cluster, 3) == 1.0


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"url": "http://x"}, "ws://"),
        ({"url": "ws://127.0.0.1:1", "token_env": "DART_GYM_NO_SUCH_TOKEN"}, "DART_GYM_NO_SUCH_TOKEN"),
        ({"codec": "gif"}, "choose one of"),
    ],
)
async def test_wrong_arguments_are_refused(arguments, match):
    with pytest.raises(ConfigurationError, match=match):
        async with dart_gym.connect(**arguments):
            pass


def test_there_is_nothing_else():
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        dart_gym.conect  # noqa: B018
