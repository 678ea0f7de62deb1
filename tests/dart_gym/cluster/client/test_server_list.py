"""A cluster whose servers are in a file: those that join get sessions, those that leave cost their episodes alone."""

import asyncio

import pytest

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.core.actions import Move
from dart_gym.core.errors import ClusterError, ConfigurationError
from dart_gym.core.outcomes import TerminalState
from dart_gym.utils.durable_files import write_file

TASK = "fake/two-steps"


def listed(path, *servers) -> None:
    write_file(path, "".join(f"{server.url}\n" for server in servers))


async def test_a_server_that_joins_the_list_takes_who_waits(start_server, tmp_path, monkeypatch):
    monkeypatch.setattr("dart_gym.cluster.client.cluster_client.LOOK_AROUND_S", 0.05)
    monkeypatch.setattr("dart_gym.cluster.client.cluster_servers.STATUS_AGE_S", 0.0)
    one, two = await start_server(desktops=1), await start_server(desktops=1)
    listed(tmp_path / "servers", one)
    client = ClusterClient(f"file://{tmp_path}/servers", settings=ClientSettings(reconnect_s=0.5))
    async with client.session() as busy, client.session() as waits:
        await busy.reset(TASK, seed=0)
        resetting = asyncio.create_task(waits.reset(TASK, seed=1))
        done, _ = await asyncio.wait({resetting}, timeout=0.3)
        assert not done
        listed(tmp_path / "servers", one, two)
        await resetting
        assert waits.server_url == two.url
        found = await client.status()
        assert {desktop["server"] for desktop in found["desktops"]} == {one.url, two.url}
        assert found.keys() >= {"warm", "waiting_to_boot", "waiting_because"}  # `dart-gym status` prints them


async def test_who_lost_a_server_waits_for_the_others_and_for_those_that_join(start_server, tmp_path, monkeypatch):
    monkeypatch.setattr("dart_gym.cluster.client.cluster_client.LOOK_AROUND_S", 0.05)
    monkeypatch.setattr("dart_gym.cluster.client.cluster_servers.STATUS_AGE_S", 0.0)
    lost, full, joins = [await start_server(desktops=1) for _ in range(3)]
    listed(tmp_path / "servers", lost)
    client = ClusterClient(f"file://{tmp_path}/servers", settings=ClientSettings(reconnect_s=0.2))
    async with client.session() as waits, client.session() as busy:
        await waits.reset(TASK, seed=0)
        listed(tmp_path / "servers", full)
        await busy.reset(TASK, seed=0)
        await lost.stop()
        resetting = asyncio.create_task(waits.reset(TASK, seed=1))
        done, _ = await asyncio.wait({resetting}, timeout=1.0)
        assert not done
        listed(tmp_path / "servers", full, joins)
        await asyncio.wait_for(resetting, 10)
        assert waits.server_url == joins.url


async def test_a_server_that_is_lost_costs_its_episode(start_server, tmp_path):
    one, two = await start_server(), await start_server()
    listed(tmp_path / "servers", one)
    client = ClusterClient(f"file://{tmp_path}/servers", settings=ClientSettings(reconnect_s=0.2))
    async with client.session() as session:
        await session.reset(TASK, seed=0)
        await one.stop()
        listed(tmp_path / "servers", two)
        assert (await session.step(Move(1, 1))).terminal is TerminalState.ENV_ERROR
        await session.reset(TASK, seed=1)
        assert session.server_url == two.url


async def test_an_empty_list_is_an_unreachable_cluster_until_it_has_a_server(start_server, tmp_path):
    listed(tmp_path / "servers")
    client = ClusterClient(f"file://{tmp_path}/servers", settings=ClientSettings(reconnect_s=0.1))
    with pytest.raises(ClusterError, match="lists no server"):
        await client.session().acquire()
    with pytest.raises(ClusterError, match="lists no server"):
        await client.status()
    listed(tmp_path / "servers", await start_server())
    async with client.session() as session:
        await session.reset(TASK, seed=0)


def test_a_list_that_cannot_be_read_is_said(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot read the cluster's list"):
        ClusterClient(f"file://{tmp_path}/none")
