"""What tests of attacks share: a server that outlives them all, and a desktop."""

from __future__ import annotations

import pytest

from dart_gym.cluster.client.private_cluster import LocalCluster
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.envs.cluster_link import background_loop


@pytest.fixture(scope="module")
def cluster():
    """A server's process with two desktops, which outlives all attacks of a file."""
    cluster = LocalCluster(2)
    background_loop().run(cluster.start)
    pid = cluster.pid
    yield cluster
    assert cluster.pid == pid, "it is the server that it was"
    background_loop().run(cluster.stop)


@pytest.fixture
async def desktop():
    """A small desktop with few processes."""
    machine = make_desktop(DesktopSpec(width=320, height=240, processes=200))
    await machine.start()
    yield machine
    await machine.stop()
