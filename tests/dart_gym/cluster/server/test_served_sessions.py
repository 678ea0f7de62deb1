"""Who may have a session and for how long: tokens, quotas, second clients, time limits, drains, TLS."""

from __future__ import annotations

import asyncio
import subprocess
import time

import numpy as np
import pytest
import websockets
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import unix_connect

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.server.access_tokens import token_line
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.cluster.server.session_registry import Lifetimes, ServedSession
from dart_gym.cluster.wire import frames as protocol
from dart_gym.cluster.wire.frames import ErrorCode, Hello, Reply, Request
from dart_gym.core import operation_deadline
from dart_gym.core.actions import Click, Move, Wait
from dart_gym.core.errors import ClusterError, ConfigurationError, ProtocolError
from dart_gym.core.outcomes import TerminalState
from dart_gym.sessions.session import Session

TWO_STEPS = "fake/two-steps"
TCP = "ws://127.0.0.1:0"


@pytest.fixture
def tokens_file(tmp_path):
    """Writes a tokens file, in which each name's token is NAME-token."""
    path = tmp_path / "tokens.yaml"

    def write(**quotas: dict[str, int]):
        lines = [token_line(name, f"{name}-token", **quota) for name, quota in quotas.items()]
        path.write_text("tokens:\n" + "\n".join(lines) if lines else "tokens: []")
        return path

    return write


def client_of(server: ClusterServer, name: str = "", reconnect_s: float = 5.0) -> ClusterClient:
    return ClusterClient(server.url, f"{name}-token" if name else None, ClientSettings(reconnect_s=reconnect_s))


async def open_by_hand(server: ClusterServer, **fields):
    """A connection that says hello and nothing else, and what the server answers."""
    path = server.url.removeprefix("ws+unix://")
    connection = await unix_connect(path, "ws://x/", compression=None, max_size=None, close_timeout=1.0)
    await connection.send(protocol.encode_hello(Hello(("raw",), **fields)))
    return connection, await connection.recv()


# --- tokens


async def test_sessions_belong_to_their_tokens(start_server, tokens_file):
    server = await start_server(listen=TCP, tokens=tokens_file(alice={}, bob={}))
    async with client_of(server, "alice").session() as session:
        await session.reset(TWO_STEPS, seed=0)
        assert server.pool.slots[0].owner == "alice"
        with pytest.raises(ClusterError, match="the session is gone") as caught:
            bob = client_of(server, "bob")
            await bob.connect(bob.records[0], session.token, take_over=True)
        assert caught.value.code == ErrorCode.SESSION_LOST
        assert (await session.step(Move(1, 1))).step_index == 1
    for name in ("", "carol"):
        with pytest.raises(ClusterError) as caught:
            await client_of(server, name).status()
        assert caught.value.code == ErrorCode.AUTH


async def test_a_quota_of_sessions(start_server, tokens_file):
    server = await start_server(listen=TCP, tokens=tokens_file(alice={"sessions": 1}, bob={}))
    async with client_of(server, "alice").session():
        with pytest.raises(ClusterError, match="alice has 1 sessions open.*close one") as caught:
            await client_of(server, "alice").status()
        assert caught.value.code == ErrorCode.CAPACITY
        assert (await client_of(server, "bob").status())["sessions"] == 2
    async with client_of(server, "alice").session() as session:
        assert (await session.reset(TWO_STEPS, seed=0)).terminal is None


async def test_a_quota_of_desktops_leaves_the_others_theirs(start_server, tokens_file):
    path = tokens_file(alice={"desktops": 1}, bob={})
    server = await start_server(listen=TCP, tokens=path, desktops=3)
    alice = client_of(server, "alice")
    async with alice.session() as first, alice.session() as second, client_of(server, "bob").session() as third:
        await first.reset(TWO_STEPS, seed=0)
        with pytest.raises(ClusterError, match="quota of 1") as caught:
            await second.reset(TWO_STEPS, seed=0, deadline_s=0.1)
        assert caught.value.code == ErrorCode.CAPACITY
        waiting = asyncio.create_task(second.reset(TWO_STEPS, seed=0))
        assert (await third.reset(TWO_STEPS, seed=0)).terminal is None
        assert not waiting.done()
        tokens_file(alice={"desktops": 2}, bob={})
        server.reload()
        assert (await waiting).terminal is None


@pytest.mark.parametrize("busy", [False, True])
async def test_a_revoked_token_ends_its_sessions_and_no_others(start_server, tokens_file, until, busy):
    server = await start_server(listen=TCP, tokens=tokens_file(alice={}, bob={}))
    async with client_of(server, "alice").session() as alice, client_of(server, "bob").session() as bob:
        for session in (alice, bob):
            await session.reset(TWO_STEPS, seed=0)
        connection = alice.connection
        step = asyncio.create_task(alice.step(Wait(60))) if busy else None
        if busy:
            await until(lambda: server.pool.slots[0].phase == "step")
        tokens_file(bob={})  # the file is looked at again by itself
        await until(lambda: len(server.sessions) == 1)
        with pytest.raises(ClusterError) as caught:
            await (step or alice.step(Move(1, 1)))
        assert caught.value.code == ErrorCode.AUTH
        await connection.wait_closed()
        assert connection.close_code == 4401
        await until(lambda: server.pool.slots[0].phase == "idle")
        assert (await bob.step(Move(1, 1))).step_index == 1
        with pytest.raises(ClusterError) as caught:
            await alice.reset(TWO_STEPS, seed=0)
        assert caught.value.code == ErrorCode.AUTH


async def test_a_tokens_file_that_is_wrong_changes_nothing(start_server, tokens_file, caplog):
    path = tokens_file(alice={})
    server = await start_server(listen=TCP, tokens=path)
    async with client_of(server, "alice").session() as session:
        await session.reset(TWO_STEPS, seed=0)
        path.write_text("tokens: [{name: alice}]")
        server.reload()
        assert "the old tokens and certificate stay in use" in caplog.text
        assert (await session.step(Move(1, 1))).step_index == 1
        assert (await client_of(server, "alice").status())["sessions"] == 2


def test_settings_of_tokens_that_contradict(tokens_file):
    with pytest.raises(ConfigurationError, match="choose one of --token-env .* and --tokens"):
        ServerSettings(listen=TCP, token="x", tokens=tokens_file())
    ServerSettings(listen="ws://0.0.0.0:1", tokens=tokens_file())


# --- a second client


async def test_a_second_client_is_refused_while_the_first_one_lives(server, client):
    async with client.session() as session:
        await session.reset(TWO_STEPS, seed=0)
        connection, answer = await open_by_hand(server, resume=session.token)
        reply = protocol.decode_reply(answer)
        assert reply.code is ErrorCode.BUSY and "open a new one" in reply.message
        await connection.wait_closed()
        assert connection.close_code == 4409
        assert (await session.step(Move(1, 1))).step_index == 1


async def test_a_second_client_may_take_over(server, client):
    async with client.session() as session:
        await session.reset(TWO_STEPS, seed=0)
        connection, answer = await open_by_hand(server, resume=session.token, take_over=True)
        assert protocol.decode_welcome(answer).resumed
        await connection.send(protocol.encode_request(Request(9, "step", 5e3, {"action": {"kind": "wait"}})))
        assert protocol.decode_reply(await connection.recv()).result["step_index"] == 1
        await connection.close()


async def test_a_connection_that_answers_nothing_is_replaced(server, client):
    """It is half-open: the client, or the line, is gone, and the server has not noticed."""
    async with client.session() as session:
        await session.reset(TWO_STEPS, seed=0)
        half_open, session.connection = session.connection, None
        half_open.transport.pause_reading()  # no ping is answered any more
        started = time.monotonic()
        assert (await session.step(Move(1, 1))).step_index == 1
        assert time.monotonic() - started > 1.0  # it was asked first
        half_open.transport.abort()


async def test_whatever_is_cut_or_sent_again_nothing_is_done_twice(server):
    """Requests sent again, lines cut with and without a reply under way, in any order: each is executed once."""

    async def play(events: list[str]) -> None:
        connection, answer = await open_by_hand(server)
        token = protocol.decode_welcome(answer).session
        args = {"task": TWO_STEPS, "seed": 0, "max_steps": 1000, "time_limit_s": None, "desktop": None}
        frame = protocol.encode_request(Request(1, "reset", 5e3, args))
        await connection.send(frame)
        reply, steps = await connection.recv(), 0
        for event in events:
            if event in ("step", "unread"):
                steps += 1
                action = {"kind": "move", "x": steps, "y": 1}
                frame = protocol.encode_request(Request(steps + 1, "step", 5e3, {"action": action}))
                await connection.send(frame)
                reply = await connection.recv() if event == "step" else None
            if event in ("cut", "unread"):
                connection.transport.abort()
                await connection.wait_closed()
                connection, answer = await open_by_hand(server, resume=token)
                assert protocol.decode_welcome(answer).resumed
            if event != "step":
                await connection.send(frame)
                again = await connection.recv()
                assert reply in (None, again)
                reply = again
            assert protocol.step_result(protocol.decode_reply(reply)).step_index == steps
        await connection.send(protocol.encode_request(Request(1000, "close", 0)))
        await connection.recv()
        await connection.close()

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.sampled_from(["step", "again", "cut", "unread"]), max_size=8))
    def scenario(events):
        asyncio.run_coroutine_threadsafe(play(events), loop).result(30)

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(scenario)
    assert server.status()["counters"].get("internal_errors", 0) == 0


async def test_a_session_closed_after_a_cancelled_step_gives_its_desktop_back(start_server, until):
    """Its last words arrive while the step is still under way, and nobody reads the reply of that."""
    server = await start_server(grace_s=60.0)
    async with ClusterClient(server.url).session() as session:
        await session.reset(TWO_STEPS, seed=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await session.step(Wait(0.3))
    await until(lambda: len(server.sessions) == 0 and server.pool.slots[0].phase == "idle")


# --- time limits


async def test_a_session_ends_after_its_lifetime_although_it_is_used(start_server):
    server = await start_server(lifetime_s=0.3)
    async with ClusterClient(server.url).session() as session:
        connection = session.connection
        await session.reset(TWO_STEPS, seed=0, max_steps=10_000)
        result = await session.step(Move(1, 1))
        while result.terminal is None:
            result = await session.step(Move(1, 1))
        assert result.terminal is TerminalState.ENV_ERROR and "as long as one may" in result.evaluation.detail
        await connection.wait_closed()
        assert connection.close_code == 4408
        assert (await session.reset(TWO_STEPS, seed=0)).terminal is None
    assert server.status()["counters"]["ended_expired"] == 1


async def test_a_lifetime_ends_an_operation_that_is_under_way(start_server, desktops, until):
    server = await start_server(lifetime_s=0.2)
    async with ClusterClient(server.url).session() as session:
        await session.reset(TWO_STEPS, seed=0)
        result = await session.step(Wait(60))
        assert result.terminal is TerminalState.ENV_ERROR and "as long as one may" in result.evaluation.detail
        await until(lambda: server.pool.slots[0].phase == "idle")
        await until(lambda: not desktops[0].alive)  # nobody knows what it did


@pytest.mark.parametrize(
    ("state", "age", "code"),
    [
        ({"connection": None}, 10.1, ErrorCode.SESSION_LOST),
        ({"connection": None}, 9.9, None),
        ({"connection": None, "locked": True}, 10.1, None),  # its operation has a deadline of its own
        ({"slot": True}, 60.1, ErrorCode.IDLE),
        ({"slot": True}, 59.9, None),
        ({"slot": True, "locked": True}, 60.1, None),
        ({"slot": False}, 60.1, None),  # it holds nothing
        ({"slot": True, "held": 100.1}, 1.0, ErrorCode.EXPIRED),
        ({"slot": True, "held": 100.1, "locked": True}, 1.0, ErrorCode.EXPIRED),
        ({"slot": False, "held": 100.1}, 1.0, None),
    ],
)
async def test_when_a_session_has_to_end(state, age, code):
    now = 1000.0
    made = ServedSession("token", "raw", last_used=now - age, held_since=now - state.get("held", 50.0))
    made.connection = state.get("connection", object())
    made.slot = object() if state.get("slot") else None
    if state.get("locked"):
        await made.lock.acquire()
    found = Lifetimes(grace_s=10.0, idle_s=60.0, lifetime_s=100.0).verdict(made, now)
    assert (found.code if found else None) == code
    if "held" in state:
        assert Lifetimes(grace_s=10.0, idle_s=60.0).verdict(made, now) is None


async def test_who_comes_back_late_is_told_why_the_session_ended(start_server, until):
    server = await start_server(idle_timeout_s=0.1)
    async with ClusterClient(server.url).session() as session:
        await session.reset(TWO_STEPS, seed=0)
        connection = session.connection
        await until(lambda: len(server.sessions) == 0)
        await connection.wait_closed()
        assert connection.close_code == 4408
        result = await session.step(Move(1, 1))
        assert result.terminal is TerminalState.ENV_ERROR and "no request for 0.1 s" in result.evaluation.detail


async def test_the_welcome_tells_the_limits(start_server):
    server = await start_server(lifetime_s=60.0, idle_timeout_s=30.0)
    client = ClusterClient(server.url)
    connection, welcome = await client.connect(client.records[0])
    await connection.close()
    assert welcome.limits == {
        "request_bytes": protocol.MAX_REQUEST_BYTES,
        "idle_s": 30.0,
        "lifetime_s": 60.0,
        "extension_s": operation_deadline.LONGEST_EXTENSION_S,
    }


async def test_a_client_that_does_not_read_blocks_nobody(start_server, until):
    """Its farewell cannot be delivered; the others and the house-keeping go on."""
    server = await start_server(idle_timeout_s=0.3, desktops=2)
    connection, _ = await open_by_hand(server)
    args = {"task": TWO_STEPS, "seed": 0, "max_steps": 10_000, "time_limit_s": None}
    size = {"desktop": {"width": 1600, "height": 1200}}
    await connection.send(protocol.encode_request(Request(1, "reset", 5e3, args | size)))
    await until(lambda: server.pool.slots[0].phase == "held")
    connection.transport.pause_reading()
    for number in range(2, 6):  # 5 MB each, more than the buffers of a socket
        await connection.send(
            protocol.encode_request(Request(number, "step", 5e3, {"action": {"kind": "move", "x": 1, "y": 1}}))
        )
    async with ClusterClient(server.url).session() as other:
        await other.reset(TWO_STEPS, seed=0)
        await until(lambda: server.pool.slots[0].phase == "idle")
        assert (await other.reset(TWO_STEPS, seed=0)).terminal is None
    connection.transport.abort()


# --- the end


async def test_a_drain_lets_episodes_end_and_begins_none(start_server, until):
    server = await start_server(desktops=2, drain_s=30.0)
    client = ClusterClient(server.url)
    async with client.session() as playing, client.session() as late:
        await playing.reset(TWO_STEPS, seed=0)
        draining = asyncio.create_task(server.drain())
        await until(lambda: server.draining)
        with pytest.raises(ClusterError, match="about to stop.*another one") as caught:
            await late.reset(TWO_STEPS, seed=0)
        assert caught.value.code == ErrorCode.SHUTDOWN
        assert (await client.status())["sessions"] == 3  # it still answers
        result = await playing.step(await playing.oracle())
        assert result.terminal is None and not draining.done()
        result = await playing.step(await playing.oracle())
        assert result.evaluation.score == 1.0
        async with asyncio.timeout(5.0):
            await draining
        with pytest.raises(ClusterError):
            await playing.reset(TWO_STEPS, seed=1)


async def test_a_drain_has_an_end(start_server):
    server = await start_server(drain_s=0.1)
    async with ClusterClient(server.url).session() as session:
        await session.reset(TWO_STEPS, seed=0)
        async with asyncio.timeout(5.0):
            await server.drain()


async def test_who_waits_for_a_desktop_is_told_of_the_drain(start_server, until):
    server = await start_server(desktops=1, drain_s=0.1)
    client = ClusterClient(server.url)
    async with client.session() as first, client.session() as second:
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await until(lambda: server.pool.waiting == 1)
        await server.drain()
        with pytest.raises(ClusterError) as caught:
            await waiting
        assert caught.value.code == ErrorCode.SHUTDOWN


# --- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    return cert, key


async def test_tls_where_there_is_a_certificate(start_server, certificate, monkeypatch):
    cert, key = certificate
    server = await start_server(listen="wss://127.0.0.1:0", tls_cert=cert, tls_key=key, token="secret")
    assert server.url.startswith("wss://127.0.0.1:")
    with pytest.raises(ClusterError, match="its certificate is not trusted .*SSL_CERT_FILE"):
        await ClusterClient(server.url, "secret", ClientSettings(reconnect_s=0.0)).status()
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    async with ClusterClient(server.url, "secret").session() as session, Session() as local:
        frames = [(await one.reset(TWO_STEPS, seed=1)).observation.screenshot for one in (session, local)]
        assert np.array_equal(*frames)
        server.reload()  # a renewed certificate is used from now on
    with pytest.raises(ClusterError, match="unreachable|cannot reach"):
        await ClusterClient(server.url.replace("wss", "ws"), "secret", ClientSettings(reconnect_s=0.0)).status()


def test_tls_needs_all_its_parts(certificate, tmp_path):
    cert, key = certificate
    for fields in ({"tls_cert": cert, "tls_key": key}, {}, {"tls_cert": cert}, {"tls_key": key}):
        with pytest.raises(ConfigurationError, match="--tls-cert"):
            ServerSettings(listen="ws://127.0.0.1:0" if len(fields) == 2 else "wss://127.0.0.1:0", **fields)
    with pytest.raises(ConfigurationError, match="no PEM certificate"):
        ClusterServer(ServerSettings(listen="wss://127.0.0.1:0", tls_cert=key, tls_key=cert))
    with pytest.raises(ConfigurationError, match="cannot read .*none.pem"):
        ClusterServer(ServerSettings(listen="wss://127.0.0.1:0", tls_cert=tmp_path / "none.pem", tls_key=key))


# --- codecs and sizes


@pytest.mark.parametrize("codec", protocol.CODECS)
async def test_a_client_gets_the_codec_that_it_asks_for(server, codec):
    client = ClusterClient(server.url, settings=ClientSettings(codecs=("avif", codec, "png")))
    async with client.session() as remote, Session() as local:
        size = {"width": 640, "height": 480}
        found, real = [await one.reset(TWO_STEPS, seed=1, desktop=size) for one in (remote, local)]
        difference = np.abs(found.observation.screenshot.astype(int) - real.observation.screenshot)
        assert difference.mean() < 5.0 and (codec in ("webp", "jpeg")) == bool(difference.any())
        target = await remote.oracle()
        assert isinstance(target, Click) and (await remote.step(target)).terminal is None


async def test_a_client_without_a_known_codec_is_refused(server):
    with pytest.raises(ProtocolError, match="no common image codec: the server has raw, png, webp, jpeg"):
        await ClusterClient(server.url, settings=ClientSettings(codecs=("avif",))).status()


async def test_a_reply_that_is_too_large_is_an_error_and_the_session_lives(server, monkeypatch):
    async with ClusterClient(server.url, settings=ClientSettings(codecs=("raw",))).session() as session:
        await session.reset(TWO_STEPS, seed=0)
        monkeypatch.setattr(protocol, "MAX_REPLY_BYTES", 1000)
        with pytest.raises(ClusterError, match="more than the 1000 that a client takes"):
            await session.step(Move(1, 1))
        monkeypatch.undo()
        assert (await session.step(Move(1, 1))).step_index == 2


async def test_a_message_beyond_the_limit_closes_its_connection_alone(server, client):
    async with client.session() as session:
        await session.reset(TWO_STEPS, seed=0)
        connection, _ = await open_by_hand(server)
        with pytest.raises(websockets.ConnectionClosed):
            await connection.send(bytes(protocol.MAX_REQUEST_BYTES + 1))
            await connection.recv()
        await connection.wait_closed()
        assert connection.close_code in (1009, 1006)  # the server closes while we still send: its reason may get lost
        assert (await session.step(Move(1, 1))).step_index == 1


async def test_an_error_that_answers_nothing_has_the_close_code_of_its_error(server):
    connection, _ = await open_by_hand(server)
    await connection.send(b"nonsense")
    reply = protocol.decode_reply(await connection.recv())
    assert reply == Reply(-1, code=ErrorCode.PROTOCOL, message=reply.message)
    await connection.wait_closed()
    assert (connection.close_code, connection.close_reason) == (4400, "protocol")
