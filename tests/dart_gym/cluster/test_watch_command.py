"""The proxy that shows a cluster to a browser of this machine, and the command that serves it."""

from __future__ import annotations

import asyncio
import signal
import sys

import httpx
import pytest

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.server.watch_proxy import cluster_routes
from dart_gym.core.actions import Move
from dart_gym.core.errors import AddressError, ClusterError
from scripts.failures.situations import Situation
from scripts.failures.stub_server import Protocol, stub
from tests.dart_gym.cluster.serving import watch_proxy

pytestmark = pytest.mark.process

TWO_STEPS = "fake/two-steps"
TOKEN = "a long random token"


def parts(page_url: str) -> tuple[str, str]:
    """Address and key of a page."""
    address, _, key = page_url.partition("#token=")
    return address, key


async def test_a_unix_socket_is_watched_through_loopback(server, client):
    async with client.session() as session, watch_proxy(server.url) as proxy, httpx.AsyncClient(trust_env=False) as web:
        await session.reset(TWO_STEPS, seed=0)
        address, key = parts(proxy.url)
        assert address.startswith("http://127.0.0.1:") and len(key) > 20
        page = await web.get(address)
        assert page.status_code == 200 and "script-src 'sha256-" in page.headers["content-security-policy"]
        for wrong in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Bearer {key}x"}):
            assert (await web.get(f"{address}/state", headers=wrong)).status_code == 401
        web.headers["Authorization"] = f"Bearer {key}"
        assert (await web.get(f"{address}/state")).json()["desktops"][0]["task"] == TWO_STEPS
        frame = await web.get(f"{address}/frame/0?size=large")
        assert frame.content[:2] == b"\xff\xd8"
        again = await web.get(f"{address}/frame/0?size=large", headers={"If-None-Match": frame.headers["etag"]})
        assert again.status_code == 304
        await session.step(Move(1, 1))
        assert (await web.get(f"{address}/frame/9")).status_code == 404
        assert (await web.get(address.replace("/watch", "/metrics"))).status_code == 404
        assert (await web.post(f"{address}/state")).status_code == 405
        await server.stop()
        gone = await web.get(f"{address}/state")
        assert gone.status_code == 502 and "dart-gym serve" in gone.text


async def test_the_clusters_token_stays_in_the_proxy(start_server):
    server = await start_server(listen="ws://127.0.0.1:0", token=TOKEN)
    async with ClusterClient(server.url, TOKEN).session() as session:
        await session.reset(TWO_STEPS, seed=0)
        async with watch_proxy(server.url, TOKEN) as proxy, httpx.AsyncClient(trust_env=False) as web:
            address, key = parts(proxy.url)
            assert TOKEN not in proxy.url
            for given, status in ((key, 200), (TOKEN, 401)):
                answer = await web.get(f"{address}/state", headers={"Authorization": f"Bearer {given}"})
                assert answer.status_code == status


async def test_what_is_wrong_is_said_at_once(start_server, tmp_path):
    server = await start_server(listen="ws://127.0.0.1:0", token=TOKEN)
    for token, reason in ((None, "--token-env"), ("wrong", "the token is wrong")):
        with pytest.raises(ClusterError, match=reason):
            async with watch_proxy(server.url, token):
                pass
    with pytest.raises(ClusterError, match="dart-gym serve"):
        async with watch_proxy(f"ws+unix://{tmp_path}/nobody"):
            pass
    with stub(Protocol.HTTP, Situation.HTML) as page, pytest.raises(ClusterError, match="is no cluster"):
        async with watch_proxy(f"ws://127.0.0.1:{page.port}"):
            pass
    with stub(Protocol.HTTP, Situation.HANGS) as silent, pytest.raises(ClusterError, match=r"within 0\.2 s"):
        async with cluster_routes(f"ws://127.0.0.1:{silent.port}", timeout_s=0.2):
            pass
    with pytest.raises(AddressError, match="--port"):
        async with watch_proxy(server.url, TOKEN, port=int(server.url.rpartition(":")[2])):
            pass


@pytest.mark.thorough
@pytest.mark.parametrize("unix", [True, False])
async def test_the_command_prints_where_the_page_is(start_server, unix):
    server = await start_server() if unix else await start_server(listen="ws://127.0.0.1:0", open=True)
    command = [sys.executable, "-m", "dart_agent.commands.agent_cli", "view", server.url]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        address, key = parts((await process.stdout.readline()).decode().strip())
        async with httpx.AsyncClient(trust_env=False) as web:
            assert "Desktops" in (await web.get(address)).text
            state = await web.get(f"{address}/state", headers={"Authorization": f"Bearer {key}"})
            assert len(state.json()["desktops"]) == server.settings.desktops
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
