"""Fixtures of the cluster tests: real servers on Unix sockets with drawn desktops."""

from __future__ import annotations

import pytest

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.fake_desktop import FakeDesktop


class Desktops(list[FakeDesktop]):
    """Makes fake desktops and remembers them."""

    def __call__(self, spec: DesktopSpec) -> FakeDesktop:
        self.append(FakeDesktop(spec))
        return self[-1]


@pytest.fixture
def desktops() -> Desktops:
    return Desktops()


@pytest.fixture
async def start_server(tmp_path_factory, desktops):
    """Starts a server from the fields of its settings; on a Unix socket unless told otherwise."""
    started = []

    async def start(**fields) -> ClusterServer:
        path = tmp_path_factory.mktemp("c") / "s"
        server = ClusterServer(ServerSettings(**{"listen": f"ws+unix://{path}", "desktops": 2, **fields}), desktops)
        await server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        await server.stop()


@pytest.fixture
async def server(start_server):
    return await start_server()


@pytest.fixture
async def tcp_server(start_server):
    return await start_server(listen="ws://127.0.0.1:0", open=True)


@pytest.fixture
def client(server):
    return ClusterClient(server.url, settings=ClientSettings(reconnect_s=0.5))
