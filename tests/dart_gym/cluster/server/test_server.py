"""The server and its client together: sessions, queues, lost connections, hostile bytes, and the end."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import numpy as np
import pytest
import websockets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import Line
from websockets.asyncio.client import connect, unix_connect
from websockets.asyncio.server import unix_serve

from dart_gym.cluster.client import cluster_client
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.cluster.wire import frames as protocol
from dart_gym.cluster.wire.frames import ErrorCode, Hello, Reply, Request, Welcome
from dart_gym.core.actions import Click, Done, Move, Type, Wait
from dart_gym.core.errors import (
    ClusterError,
    ConfigurationError,
    EpisodeStateError,
    ProtocolError,
    TaskError,
    UnknownTaskError,
)
from dart_gym.core.operation_deadline import keep_open
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.sessions.session import Session
from dart_gym.tasks.catalog.registry import make_scenario

TWO_STEPS = "fake/two-steps"


def path_of(server: ClusterServer) -> str:
    return server.url.removeprefix("ws+unix://")


@pytest.fixture
async def line(server, tmp_path):
    async with Line(Path(path_of(server)), tmp_path / "p") as line:
        yield line


# --- episodes


async def test_an_episode_over_the_wire_equals_one_in_process(client):
    async with client.session() as remote, Session() as local:
        for seed in range(3):
            for session in (remote, local):
                results = [await session.reset(TWO_STEPS, seed=seed)]
                while results[-1].terminal is None:
                    results.append(await session.step(await session.oracle()))
                if session is remote:
                    theirs = results
            for one, other in zip(theirs, results, strict=True):
                assert np.array_equal(one.observation.screenshot, other.observation.screenshot)
                assert (one.terminal, one.evaluation, one.step_index, one.info) == (
                    other.terminal,
                    other.evaluation,
                    other.step_index,
                    other.info,
                )
                assert one.timings.keys() == other.timings.keys()


async def test_png_over_tcp_shows_the_same_screen(start_server):
    server = await start_server(listen="ws://127.0.0.1:0")
    async with ClusterClient(server.url).session() as remote, Session() as local:
        frames = [(await s.reset(TWO_STEPS, seed=1)).observation.screenshot for s in (remote, local)]
        big = await remote.reset(TWO_STEPS, seed=1, desktop={"width": 800, "height": 600})  # compressed in a thread
    assert np.array_equal(*frames) and big.observation.screenshot.shape == (600, 800, 3)


async def test_finish_and_errors_cross_the_wire(client, tmp_path):
    async with client.session() as session:
        with pytest.raises(EpisodeStateError):
            await session.step(Done())
        with pytest.raises(UnknownTaskError, match="did you mean"):
            await session.reset("fake/two-stepz", seed=0)
        with pytest.raises(ConfigurationError):
            await session.reset(TWO_STEPS, seed=0, desktop={"sandbox": "none"})
        with pytest.raises(TaskError):
            await session.reset({"id": "x"}, seed=0)
        with pytest.raises(UnknownTaskError, match="cannot read"):
            await session.reset(str(tmp_path / "task.json"), seed=0)
        await session.reset(TWO_STEPS, seed=0)
        result = await session.finish(TerminalState.PARSE_ERROR)
        assert result.terminal is TerminalState.PARSE_ERROR and result.evaluation.score == 0.0


@pytest.mark.parametrize("told", [True, False])
async def test_a_client_waits_as_much_longer_as_a_server_may_move_its_deadline(client, monkeypatch, told):
    """An evaluation that a busy machine delays keeps its episode; a server that says nothing gets no more time."""
    monkeypatch.setattr(cluster_client, "REPLY_MARGIN_S", 0.1)
    if not told:
        monkeypatch.setattr(protocol, "LIMITS", ("request_bytes",))
    scenario = type(make_scenario("fake"))
    evaluate = scenario.evaluate

    async def slow(*arguments):
        assert keep_open(5.0)
        await asyncio.sleep(0.5)
        return await evaluate(*arguments)

    monkeypatch.setattr(scenario, "evaluate", slow)
    async with client.session() as session:
        await session.reset(TWO_STEPS, seed=0)
        last = await session.step(Done(), deadline_s=0.2)
    assert last.terminal is (TerminalState.DONE if told else TerminalState.ENV_ERROR), last
    assert told or "did not answer within 0.3 s" in last.evaluation.detail


async def test_the_server_reads_no_files_for_clients(client):
    async with client.session() as session:
        with pytest.raises(UnknownTaskError, match="client's machine"):
            await session.call(
                "reset",
                {"task": "/etc/x.json", "seed": 0} | dict.fromkeys(("max_steps", "time_limit_s", "desktop")),
                5.0,
            )


async def test_a_bad_action_is_an_error_and_the_episode_goes_on(client):
    async with client.session() as session:
        await session.reset(TWO_STEPS, seed=0)
        for action in ({"kind": "exec"}, {"kind": "click", "x": 1}, None, {"kind": "press", "keys": 5}, "click"):
            with pytest.raises(ClusterError) as caught:
                await session.call("step", {"action": action}, 5.0)
            assert caught.value.code == ErrorCode.BAD_ACTION
        assert (await session.step(Move(1, 1))).step_index == 1


# --- sessions and slots


async def test_waiting_sessions_are_served_in_order(start_server, until):
    server = await start_server(desktops=1)
    client = ClusterClient(server.url)
    order: list[int] = []
    all_wait = asyncio.Event()

    async def episode(number: int) -> float:
        async with client.session() as session:
            result = await session.reset(TWO_STEPS, seed=number)
            order.append(number)
            await all_wait.wait()
            await session.step(Wait(0.02))
            return result.timings["queue"]

    tasks = [asyncio.create_task(episode(0))]
    await until(lambda: order)
    for number in range(1, 4):
        tasks.append(asyncio.create_task(episode(number)))
        await until(lambda number=number: server.pool.waiting == number)
    all_wait.set()
    queued = await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3]
    assert queued[0] < min(queued[1:])


async def test_a_full_cluster_says_so_at_the_deadline(start_server):
    server = await start_server(desktops=1)
    client = ClusterClient(server.url)
    async with client.session() as first, client.session() as second:
        await first.reset(TWO_STEPS, seed=0)
        with pytest.raises(ClusterError, match="all 1 desktops") as caught:
            await second.reset(TWO_STEPS, seed=0, deadline_s=0.05)
        assert caught.value.code == ErrorCode.CAPACITY
        await first.close()
        assert (await second.reset(TWO_STEPS, seed=0)).terminal is None


async def test_who_leaves_the_queue_blocks_nobody(start_server, until):
    server = await start_server(desktops=1)
    client = ClusterClient(server.url)
    async with client.session() as first, client.session() as third:
        await first.acquire()
        second = client.session()
        waiting = asyncio.create_task(second.acquire())
        await until(lambda: server.pool.waiting == 1)
        waiting.cancel()
        second.drop()
        await until(lambda: server.pool.waiting == 0)
        await first.close()
        assert await third.acquire(deadline_s=1.0) < 1.0


async def test_status_tells_what_every_desktop_does(client, until):
    async with client.session() as session:
        await session.reset(TWO_STEPS, seed=0)
        busy = asyncio.create_task(session.step(Wait(0.2)))
        status = await client.status()
        assert [desktop["phase"] for desktop in status["desktops"]] == ["step", "idle"]
        await busy
        status = await client.status()
    first = status["desktops"][0]
    assert first["phase"] == "held" and first["task"] == TWO_STEPS and first["episodes"] == 1 and first["alive"]
    assert first["busy_s"]["step"] >= 0.2 and first["busy_s"]["boot"] > 0
    assert first["limits"] == {"memory_mb": 4096, "processes": 1024, "cpus": 4.0, "storage_mb": 1024}
    assert status["counters"]["step"] == 1 and status["uptime_s"] > 0.2


async def test_desktops_are_kept_for_the_next_session(client, desktops):
    for _ in range(3):
        async with client.session() as session:
            await session.reset(TWO_STEPS, seed=0)
    assert len(desktops) == 1


async def test_an_idle_session_ends(start_server, until):
    server = await start_server(idle_timeout_s=0.1)
    async with ClusterClient(server.url).session() as session:
        await session.reset(TWO_STEPS, seed=0)
        await until(lambda: all(slot.phase == "idle" for slot in server.pool.slots))
        result = await session.step(Move(1, 1))
        assert result.terminal is TerminalState.ENV_ERROR
        assert (await session.reset(TWO_STEPS, seed=0)).terminal is None


async def test_an_idle_desktop_is_stopped(start_server, desktops, until):
    server = await start_server(idle_desktop_s=0.1)
    async with ClusterClient(server.url).session() as session:
        await session.reset(TWO_STEPS, seed=0)
    await until(lambda: not desktops[0].alive)


# --- trouble


async def test_a_crashed_desktop_is_a_value_and_replaced(client, desktops):
    async with client.session() as session:
        await session.reset(TWO_STEPS, seed=0)
        desktops[0].crash()
        result = await session.step(Move(1, 1))
        assert result.terminal is TerminalState.ENV_ERROR
        assert result.evaluation.status is EvaluationStatus.ENVIRONMENT_ERROR
        assert (await session.reset(TWO_STEPS, seed=0)).terminal is None
    assert len(desktops) == 2


async def test_a_lost_reply_executes_nothing_twice(line, server, desktops):
    async with ClusterClient(line.url).session() as session:
        await session.reset(TWO_STEPS, seed=0)
        line.lose_next_reply = True
        result = await session.step(Type("once"))
        assert result.step_index == 1 and result.terminal is None
        assert desktops[0].typed == "once"
        assert (await session.step(Type("!"))).step_index == 2
    assert server.status()["counters"]["resent"] == 1 and len(desktops) == 1


async def test_a_cut_between_operations_goes_unnoticed(line, server):
    async with ClusterClient(line.url).session() as session:
        await session.reset(TWO_STEPS, seed=0)
        for index in range(1, 4):
            line.cut()
            assert (await session.step(Wait(0))).step_index == index
    assert server.status()["counters"]["resumed"] == 3


async def test_a_cut_during_an_operation_waits_for_its_result(line, desktops):
    async with ClusterClient(line.url).session() as session:
        await session.reset(TWO_STEPS, seed=0)
        step = asyncio.create_task(session.step(Wait(0.2)))
        await asyncio.sleep(0.05)
        line.cut()
        assert (await step).step_index == 1


async def test_after_the_grace_period_the_episode_is_lost_and_the_desktop_free(start_server, tmp_path, until):
    server = await start_server(grace_s=0.05, desktops=1)
    async with Line(Path(path_of(server)), tmp_path / "p") as line:
        async with ClusterClient(line.url).session() as session:
            await session.reset(TWO_STEPS, seed=0)
            line.cut()
            await until(lambda: server.status()["sessions"] == 0)
            async with ClusterClient(server.url).session() as other:
                assert (await other.reset(TWO_STEPS, seed=0, deadline_s=2.0)).terminal is None
            result = await session.step(Move(1, 1))
            assert result.terminal is TerminalState.ENV_ERROR and "grace" in result.evaluation.detail
            assert (await session.reset(TWO_STEPS, seed=0)).terminal is None


async def test_a_reset_survives_a_line_that_breaks_again_and_again(start_server, tmp_path, until):
    """Whoever waits in line has nothing to come back to, so each cut costs the session."""
    server = await start_server(desktops=1)
    async with Line(Path(path_of(server)), tmp_path / "p") as line, ClusterClient(line.url).session() as session:
        async with ClusterClient(server.url).session() as other:
            await other.reset(TWO_STEPS, seed=0)
            reset = asyncio.create_task(session.reset(TWO_STEPS, seed=0))
            for sessions in (2, 3, 4):
                await until(lambda n=sessions: server.pool.waiting and server.status()["counters"]["sessions"] == n)
                if sessions < 4:
                    line.cut()
        assert (await reset).terminal is None


async def test_a_restarted_server_loses_the_episode_but_not_the_client(start_server):
    server = await start_server()
    async with ClusterClient(server.url).session() as session:
        await session.reset(TWO_STEPS, seed=0)
        await server.stop()
        await start_server(listen=server.url)
        assert (await session.step(Move(1, 1))).terminal is TerminalState.ENV_ERROR
        assert (await session.reset(TWO_STEPS, seed=0)).terminal is None


async def test_a_server_that_is_gone(start_server):
    server = await start_server()
    client = ClusterClient(server.url, settings=ClientSettings(reconnect_s=0.1))
    async with client.session() as session:
        await session.reset(TWO_STEPS, seed=0)
        await server.stop()
        assert (await session.step(Move(1, 1))).terminal is TerminalState.ENV_ERROR
        with pytest.raises(ClusterError, match="dart-gym serve") as caught:
            await session.reset(TWO_STEPS, seed=0)
        assert caught.value.code == ErrorCode.UNREACHABLE


async def test_a_cancelled_call_does_not_shift_the_replies(client):
    async with client.session() as session:
        await session.reset(TWO_STEPS, seed=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await session.step(Wait(0.1))
        assert (await session.step(Wait(0))).step_index == 2


async def test_close_cancels_what_is_under_way(start_server, desktops, until):
    server = await start_server(desktops=1)
    client = ClusterClient(server.url)
    session = client.session()
    await session.reset(TWO_STEPS, seed=0)
    step = asyncio.create_task(session.step(Wait(30)))
    await until(lambda: server.pool.slots[0].phase == "step")
    step.cancel()
    await session.close()
    async with client.session() as other:
        assert (await other.reset(TWO_STEPS, seed=0, deadline_s=2.0)).terminal is None
    assert not desktops[0].alive  # nobody knows what it did


# --- hostile or broken peers


@pytest.mark.parametrize("greeted", [False, True])
async def test_any_bytes_end_the_connection_and_nothing_else(server, client, greeted):
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=80) | st.text(max_size=20))
    def send(data):
        asyncio.run_coroutine_threadsafe(attack(data), loop).result(10)

    async def attack(data):
        async with unix_connect(path_of(server), "ws://x/", compression=None) as connection:
            if greeted:
                await connection.send(protocol.encode_hello(Hello(("raw",))))
                protocol.decode_welcome(await connection.recv())
            await connection.send(data)
            reply = protocol.decode_reply(await connection.recv())
            assert reply.code is ErrorCode.PROTOCOL and reply.message
            with pytest.raises(websockets.ConnectionClosed):
                await connection.recv()

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(send)
    async with client.session() as session:
        assert (await session.reset(TWO_STEPS, seed=0)).terminal is None
    assert server.status()["counters"].get("internal_errors", 0) == 0


async def test_a_request_that_is_too_big_is_refused(client):
    async with client.session() as session:
        with pytest.raises(ProtocolError, match="more than the server takes"):
            await session.reset({"id": "x", "instruction": "y" * protocol.MAX_REQUEST_BYTES}, seed=0)
        assert (await session.reset(TWO_STEPS, seed=0)).terminal is None


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\1\x90", "text", protocol.encode_reply(Reply(99))])
async def test_the_client_survives_a_server_that_talks_nonsense(tmp_path, answer):
    async def serve(connection):
        await connection.recv()
        await connection.send(protocol.encode_welcome(Welcome("t", "raw")))
        await connection.recv()
        await connection.send(answer)
        await connection.wait_closed()

    path = str(tmp_path / "s")
    async with unix_serve(serve, path):
        session = ClusterClient(f"ws+unix://{path}").session()
        with pytest.raises(ProtocolError):
            await session.reset(TWO_STEPS, seed=0)
        await session.close()


async def test_another_version_is_refused(server):
    async with unix_connect(path_of(server), "ws://x/", compression=None) as connection:
        await connection.send(protocol.encode_hello(Hello(("raw",), protocol=99)))
        with pytest.raises(ProtocolError, match="version"):
            protocol.decode_welcome(await connection.recv())


async def test_old_request_ids_are_refused(server):
    async with unix_connect(path_of(server), "ws://x/", compression=None) as connection:
        await connection.send(protocol.encode_hello(Hello(("raw",))))
        await connection.recv()
        for number in (5, 4):
            await connection.send(protocol.encode_request(Request(number, "status", 1000.0)))
        assert protocol.decode_reply(await connection.recv()).id == 5
        assert protocol.decode_reply(await connection.recv()).code is ErrorCode.PROTOCOL


# --- who may connect


async def test_a_token_is_needed_where_one_is_set(start_server):
    server = await start_server(listen="ws://127.0.0.1:0", token="s3cret-é")
    for token in (None, "wrong"):
        with pytest.raises(ClusterError, match="refused") as caught:
            await ClusterClient(server.url, token).status()
        assert caught.value.code == ErrorCode.AUTH


async def test_the_right_token_opens(start_server):
    server = await start_server(listen="ws://127.0.0.1:0", token="s3cret")
    assert (await ClusterClient(server.url, "s3cret").status())["sessions"] == 1


def test_other_machines_need_a_token():
    for listen in ("ws://0.0.0.0:1", "ws://192.168.0.5:1", "ws://[::]:1", "ws://example.org:1"):
        with pytest.raises(ConfigurationError, match="--token-env"):
            ServerSettings(listen=listen)
    ServerSettings(listen="ws://0.0.0.0:1", token="x")
    for listen in ("ws://127.0.0.1:1", "ws://[::1]:1", "ws://localhost:1", "ws+unix:///s"):
        ServerSettings(listen=listen)


async def test_pages_in_a_browser_cannot_connect(start_server):
    server = await start_server(listen="ws://127.0.0.1:0")
    with pytest.raises(websockets.InvalidStatus, match="403"):
        await connect(server.url, origin="https://evil.example")


async def test_the_socket_belongs_to_its_user_alone(server):
    assert os.stat(path_of(server)).st_mode & 0o077 == 0


# --- begin and end


async def test_a_port_in_use_is_named(start_server):
    server = await start_server(listen="ws://127.0.0.1:0")
    port = server.url.rpartition(":")[2]
    with pytest.raises(ConfigurationError, match=f"port {port} .* in use.*--listen"):
        await ClusterServer(ServerSettings(listen=server.url)).start()


async def test_a_living_socket_is_refused_and_a_dead_one_replaced(server, start_server, tmp_path):
    with pytest.raises(ConfigurationError, match="in use"):
        await ClusterServer(ServerSettings(listen=server.url)).start()
    path = tmp_path / "dead"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    again = await start_server(listen=f"ws+unix://{path}")
    assert (await ClusterClient(again.url).status())["sessions"] == 1


async def test_stop_leaves_nothing(server, client, desktops):
    sessions = [client.session(), client.session()]
    for session in sessions:
        await session.reset(TWO_STEPS, seed=0)
    step = asyncio.create_task(sessions[0].step(Wait(0.1)))
    await asyncio.sleep(0.02)
    await server.stop()
    assert (await step).terminal is None  # it was let finish
    assert not any(desktop.alive for desktop in desktops)
    assert not Path(path_of(server)).exists()
    await server.stop()
    for session in sessions:
        await session.close()


async def test_stop_cancels_what_does_not_end(start_server, desktops):
    server = await start_server(drain_s=0.05)
    client = ClusterClient(server.url, settings=ClientSettings(reconnect_s=0.0))
    async with client.session() as session:
        await session.reset(TWO_STEPS, seed=0)
        step = asyncio.create_task(session.step(Wait(60)))
        await asyncio.sleep(0.02)
        async with asyncio.timeout(5.0):
            await server.stop()
        assert (await step).terminal is TerminalState.ENV_ERROR
    assert not desktops[0].alive


async def test_clicks_reach_the_desktop_where_they_were_aimed(client, desktops):
    async with client.session() as session:
        await session.reset(TWO_STEPS, seed=4)
        target = await session.oracle()
        assert isinstance(target, Click)
        await session.step(target)
    assert len(desktops[0].clicked) == 1
