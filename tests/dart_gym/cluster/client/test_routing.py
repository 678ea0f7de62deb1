"""Which server a new session goes to, and what becomes of sessions whose server is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.cluster.client import cluster_servers
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import (
    LAST_REST_S,
    ClientSettings,
    Load,
    ServerRecord,
    combine,
    preference,
    server_urls,
)
from dart_gym.cluster.client.private_cluster import LocalCluster
from dart_gym.cluster.wire.cluster_address import parse_address
from dart_gym.core.actions import Move
from dart_gym.core.errors import ClusterError, ConfigurationError
from dart_gym.core.outcomes import TerminalState
from dart_gym.tasks.suites.fake_suite import FakeScenario

TASK = "fake/two-steps"
LOADS = st.builds(Load, st.integers(1, 64), st.integers(0, 64), st.integers(0, 64))


def record(name: str, load: Load | None = None, **fields) -> ServerRecord:
    return ServerRecord(parse_address(f"ws://{name}"), load, **fields)


def client_of(*servers, reconnect_s: float = 0.2) -> ClusterClient:
    url = ",".join(server.url for server in servers)
    return ClusterClient(url, settings=ClientSettings(reconnect_s=reconnect_s))


# --- the decision


@given(st.lists(LOADS, min_size=1, max_size=6))
def test_nobody_is_preferred_who_has_more_to_do(loads):
    servers = [record(f"h{i}", load) for i, load in enumerate(loads)]
    order = preference(servers, 0.0)
    assert sorted(order, key=id) == sorted(servers, key=id)
    demands = [(load.lent + load.waiting + 1) / load.desktops for load in (one.load for one in order)]
    assert demands == sorted(demands)


@given(st.lists(st.tuples(LOADS, st.booleans()), min_size=1, max_size=6))
def test_who_is_down_comes_last(servers):
    records = [record(f"h{i}", load, down_until=9.0 if down else 0.0) for i, (load, down) in enumerate(servers)]
    downs = [one.is_down(5.0) for one in preference(records, 5.0)]
    assert downs == sorted(downs)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 60))
def test_sessions_spread_in_proportion(sizes, sessions):
    """What a status cannot know yet counts: placing many at once fills no server while another is emptier."""
    servers = [record(f"h{i}", Load(size, 0, 0)) for i, size in enumerate(sizes)]
    for _ in range(sessions):
        preference(servers, 0.0)[0].placed += 1
    if sessions <= sum(sizes):
        assert all(one.placed <= one.load.desktops for one in servers)
    shares = [one.placed / one.load.desktops for one in servers]
    assert max(shares) - min(shares) <= max(1 / size for size in sizes) + 1e-9


def test_a_server_that_fails_again_rests_longer():
    server, rests = record("a"), []
    for _ in range(12):
        server.failed(100.0)
        rests.append(server.down_until - 100.0)
    assert rests == sorted(rests) and rests[0] == 1.0 and rests[-1] == LAST_REST_S
    server.answered(Load(4, 0, 0), 200.0)
    assert not server.is_down(0.0) and server.failures == 0


@pytest.mark.parametrize("url", ["ws://a,http://b", "ws://a,", "ws://a, ws://a"])
def test_bad_lists_of_servers_are_refused(url):
    with pytest.raises(ConfigurationError):
        server_urls(url)


def test_statuses_add_up():
    status = {"desktops": [{"slot": "0"}], "waiting": 2, "sessions": 3, "uptime_s": 5.0, "counters": {"step": 4}}
    status |= {"warm": [{"ready": True}], "waiting_to_boot": 1, "waiting_because": "memory"}
    found = combine({"ws://a": status, "ws://b": "OSError", "ws://c": {**status, "uptime_s": 9.0}})
    assert (found["waiting"], found["sessions"], found["uptime_s"], found["counters"]) == (4, 6, 9.0, {"step": 8})
    assert [desktop["server"] for desktop in found["desktops"]] == ["ws://a", "ws://c"]
    assert found["servers"]["ws://b"] == "OSError"
    assert (len(found["warm"]), found["waiting_to_boot"], found["waiting_because"]) == (2, 2, "memory; memory")


# --- real servers


async def test_closing_a_session_in_the_middle_of_a_reset_opens_no_other(start_server, monkeypatch, until):
    started, prepare = asyncio.Event(), FakeScenario.prepare

    async def slow(scenario, desktop, task, seed):
        started.set()
        await asyncio.sleep(30)
        return await prepare(scenario, desktop, task, seed)

    monkeypatch.setattr(FakeScenario, "prepare", slow)
    servers = [await start_server(), await start_server()]
    for client in (client_of(servers[0]), client_of(*servers)):
        started.clear()
        session = client.session()
        resetting = asyncio.create_task(session.reset(TASK, seed=0))
        await started.wait()
        await session.close()
        with pytest.raises(ClusterError, match="closed during"):
            await resetting
        await until(lambda: not any(server.status()["sessions"] for server in servers))
        assert {desktop["phase"] for server in servers for desktop in server.status()["desktops"]} == {"idle"}


async def test_sessions_go_to_the_least_loaded_and_stay_there(start_server):
    servers = [await start_server(desktops=size) for size in (1, 2, 1)]
    client = client_of(*servers)
    sessions = [client.session() for _ in range(4)]
    await asyncio.gather(*(session.reset(TASK, seed=i) for i, session in enumerate(sessions)))
    places = [session.server_url for session in sessions]
    assert {url: places.count(url) for url in places} == dict(zip([s.url for s in servers], (1, 2, 1), strict=True))
    for session in sessions:
        await session.step(Move(1, 1))
        await session.reset(TASK, seed=9)
    assert [session.server_url for session in sessions] == places
    assert [desktop["phase"] for desktop in (await client.status())["desktops"]] == ["held"] * 4
    for session in sessions:
        await session.close()


async def test_sessions_that_are_placed_together_ask_each_server_once(start_server, monkeypatch):
    """A status that takes longer than it is good for: 200 sessions that asked one after the other took as many asks."""
    servers = [await start_server(desktops=1), await start_server(desktops=1)]
    monkeypatch.setattr(cluster_servers, "STATUS_AGE_S", 0.0)
    known = cluster_servers.ClusterServers(",".join(server.url for server in servers))
    asked = []
    ask = known.ask
    monkeypatch.setattr(known, "ask", lambda server: (asked.append(server), ask(server))[1])
    orders = await asyncio.gather(*(known.by_preference() for _ in range(200)))
    assert all(len(order) == 2 for order in orders) and len(asked) == 2


async def test_another_clients_load_is_seen(start_server):
    one, two = await start_server(), await start_server()
    async with client_of(one).session() as busy, client_of(one, two).session() as session:
        await busy.reset(TASK, seed=0)
        await session.reset(TASK, seed=0)
        assert session.server_url == one.url  # opened before anybody had a desktop
    async with client_of(one).session() as busy, client_of(one, two).session() as session:
        assert session.server_url == one.url and busy.server_url == one.url
    async with client_of(one).session() as busy:
        await busy.reset(TASK, seed=0)
        async with client_of(one, two).session() as session:
            assert session.server_url == two.url


async def test_a_server_that_is_down_is_passed_over_and_tried_again(start_server, tmp_path, until):
    up = await start_server()
    address = f"ws+unix://{tmp_path}/late"
    client = ClusterClient(f"{address},{up.url}", settings=ClientSettings(reconnect_s=0.2))
    async with client.session() as session:
        assert (await session.reset(TASK, seed=0)).terminal is None and session.server_url == up.url
        late = await start_server(listen=address)

        async def second() -> str:
            async with client.session() as other:
                await other.reset(TASK, seed=0)
                return other.server_url

        deadline = time.monotonic() + 10.0
        while await second() != late.url:  # it is left alone for a second first
            assert time.monotonic() < deadline


async def test_a_stopped_server_costs_the_episode_and_not_the_client(start_server):
    servers = [await start_server() for _ in range(3)]
    async with client_of(*servers).session() as session:
        for remaining in (2, 1):
            await session.reset(TASK, seed=0)
            lost = next(server for server in servers if server.url == session.server_url)
            await lost.stop()
            servers.remove(lost)
            result = await session.step(Move(1, 1))
            assert result.terminal is TerminalState.ENV_ERROR and result.observation.action_error
            assert (await session.reset(TASK, seed=1)).terminal is None
            assert session.server_url in [server.url for server in servers] and len(servers) == remaining
        assert (await session.step(Move(1, 1))).terminal is None


async def test_a_reset_goes_on_elsewhere_by_itself(start_server):
    servers = [await start_server() for _ in range(2)]
    async with client_of(*servers).session() as session:
        await session.reset(TASK, seed=0)
        await next(server for server in servers if server.url == session.server_url).stop()
        assert (await session.reset(TASK, seed=1)).terminal is None  # nothing ran that could have been lost


@pytest.mark.thorough
@pytest.mark.process
async def test_a_killed_server_costs_the_episode_and_not_the_client():
    async with LocalCluster(desktops=1) as one, LocalCluster(desktops=1) as two:
        clusters = {one.url: one, two.url: two}
        async with client_of(one, two).session() as session, client_of(one, two).session() as other:
            await session.reset(TASK, seed=0)
            await other.reset(TASK, seed=0)
            assert {session.server_url, other.server_url} == set(clusters)
            os.kill(clusters[session.server_url].pid, signal.SIGKILL)
            result = await session.step(Move(1, 1))
            assert result.terminal is TerminalState.ENV_ERROR and result.evaluation.score is None
            assert (await other.step(Move(1, 1))).terminal is None
            await other.close()
            assert (await session.reset(TASK, seed=1)).terminal is None


async def test_who_waits_in_line_moves_to_the_server_that_is_free_first(start_server, monkeypatch, until):
    monkeypatch.setattr("dart_gym.cluster.client.cluster_client.LOOK_AROUND_S", 0.05)
    monkeypatch.setattr("dart_gym.cluster.client.cluster_servers.STATUS_AGE_S", 0.02)
    servers = [await start_server(desktops=1) for _ in range(2)]
    client = client_of(*servers)
    holders = [client.session() for _ in servers]
    for holder in holders:
        await holder.reset(TASK, seed=0)
    assert {holder.server_url for holder in holders} == {server.url for server in servers}
    async with client.session() as waiting:
        resetting = asyncio.create_task(waiting.reset(TASK, seed=1))
        await until(lambda: sum(server.pool.waiting for server in servers))
        here = next(server for server in servers if server.pool.waiting)
        (elsewhere,) = [holder for holder in holders if holder.server_url != here.url]
        await elsewhere.close()
        result = await resetting
        assert waiting.server_url != here.url and result.timings["queue"] > 0.0
        assert (await waiting.step(Move(1, 1))).terminal is None
        assert here.pool.waiting == 0 and here.status()["sessions"] == 1
    for holder in holders:
        await holder.close()


async def test_waiting_in_line_ends_with_the_deadline(start_server, monkeypatch):
    monkeypatch.setattr("dart_gym.cluster.client.cluster_client.LOOK_AROUND_S", 0.05)
    monkeypatch.setattr("dart_gym.cluster.client.cluster_servers.STATUS_AGE_S", 0.02)
    servers = [await start_server(desktops=1) for _ in range(2)]
    client = client_of(*servers)
    async with client.session() as one, client.session() as two, client.session() as three:
        await one.reset(TASK, seed=0)
        await two.reset(TASK, seed=0)
        with pytest.raises(ClusterError) as caught:
            await three.reset(TASK, seed=0, deadline_s=0.1)
        assert caught.value.code == "capacity"
        await two.close()
        assert (await three.reset(TASK, seed=0, deadline_s=20.0)).terminal is None


async def test_only_when_no_server_answers_the_cluster_is_unreachable(tmp_path):
    client = ClusterClient(f"ws+unix://{tmp_path}/a,ws+unix://{tmp_path}/b", settings=ClientSettings(reconnect_s=0.1))
    with pytest.raises(ClusterError, match="dart-gym serve") as caught:
        await client.session().reset(TASK, seed=0)
    assert caught.value.code == "unreachable"
    with pytest.raises(ClusterError, match="cannot reach"):
        await client.status()


async def test_a_wrong_token_is_not_passed_over(start_server):
    good, locked = await start_server(), await start_server(listen="ws://127.0.0.1:0", token="s3cret")
    with pytest.raises(ClusterError, match="no token was given"):
        await client_of(locked, good).session().reset(TASK, seed=0)
