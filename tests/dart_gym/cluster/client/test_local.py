"""The private cluster: it starts by itself, is shared, and never outlives its process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dart_gym.cluster.client.private_cluster import LocalCluster
from dart_gym.core.errors import ClusterError
from dart_gym.envs.cluster_link import SharedCluster, background_loop
from dart_gym.utils.processes import start_time

pytestmark = pytest.mark.process


def directory_of(url: str) -> Path:
    return Path(url.removeprefix("ws+unix://")).parent


async def test_it_starts_serves_and_leaves_nothing():
    async with LocalCluster(desktops=1) as cluster:
        assert cluster.pid is not None
        pid, directory = cluster.pid, directory_of(cluster.url)
        async with cluster.client().session() as session:
            assert (await session.reset("fake/click-button", seed=0)).terminal is None
            assert (await session.step(await session.oracle())).reward == 1.0
    assert start_time(pid) is None and not directory.exists()


async def test_a_server_that_does_not_start_says_why():
    with pytest.raises(ClusterError, match="desktops: input should be greater than or equal to 1"):
        await LocalCluster(desktops=0).start()


async def test_it_is_shared_and_ends_with_its_last_user():
    shared = SharedCluster()
    first, second = await asyncio.gather(shared.acquire(), shared.acquire())
    assert first == second
    await shared.release()
    assert directory_of(first).exists()
    await shared.release()
    assert not directory_of(first).exists()
    assert await shared.acquire() != first
    await shared.release()


OWNER = """
import sys, time
from dart_gym.envs.cluster_link import background_loop
from dart_gym.cluster.client.private_cluster import LocalCluster
cluster = LocalCluster()
background_loop().run(cluster.start)
print(cluster.pid, cluster.url, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_it_dies_with_its_owner_however_that_dies(until, signum):
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdin is not None and owner.stdout is not None
    pid, url = (await asyncio.to_thread(owner.stdout.readline)).split()
    os.kill(owner.pid, signum)
    await asyncio.to_thread(owner.wait, 30)
    await until(lambda: start_time(int(pid)) is None, timeout=20.0)
    assert not directory_of(url).exists()
    owner.stdin.close()
    owner.stdout.close()


async def test_a_signal_that_comes_again_and_again_leaves_nothing():
    directory = Path(tempfile.mkdtemp(prefix="cluster-"))
    command = [sys.executable, "-m", "dart_gym.commands.gym_cli", "serve", "--private", "--desktops", "1"]
    server = subprocess.Popen([*command, "--listen", f"ws+unix://{directory}/gym.sock"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    with server, server.stdout:
        assert (await asyncio.to_thread(server.stdout.readline)).startswith(b"listening on")
        while server.poll() is None:  # the kernel sends one for each thread of an owner that is killed
            server.terminate()
            await asyncio.sleep(0.001)
    assert server.returncode == 0 and not directory.exists()


async def test_the_loop_may_be_used_inside_a_running_loop_but_not_its_own():
    async def answer() -> int:
        return 42

    assert background_loop().run(answer) == 42  # as in Jupyter

    async def inside() -> None:
        background_loop().run(answer)

    with pytest.raises(RuntimeError, match="own loop"):
        background_loop().run(inside)
