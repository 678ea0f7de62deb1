"""Faults between real clients and a real `dart-gym serve`: cut, slow and lying lines, wrong tokens, random frames.

In each of them another client plays on, and what goes wrong is a value or a typed error that says what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import struct
from collections.abc import AsyncIterator, Callable, Iterator

import msgpack
import pytest
import websockets
from serving import Line, Place, ServeProcess
from waiting import wait_for
from websockets.asyncio.client import unix_connect
from websockets.asyncio.server import unix_serve

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.server.access_tokens import token_line
from dart_gym.cluster.wire import frames as protocol
from dart_gym.cluster.wire.frames import ErrorCode, Hello, Request
from dart_gym.core.actions import Click, Move, Type, Wait
from dart_gym.core.errors import ClusterError, ProtocolError, UnknownTaskError
from dart_gym.core.outcomes import TerminalState

pytestmark = pytest.mark.process

TASK = "fake/two-steps"


@pytest.fixture
def place():
    place = Place()
    yield place
    place.remove()


@pytest.fixture
async def server(place):
    async with ServeProcess(place, "--desktops", "3", "--warm", "0") as server:
        yield server


def client_of(url: str, token: str | None = None, reconnect_s: float = 20.0) -> ClusterClient:
    return ClusterClient(url, token, ClientSettings(reconnect_s=reconnect_s))


@contextlib.asynccontextmanager
async def somebody_else(url: str, token: str | None = None) -> AsyncIterator[None]:
    """Another client, which plays all the time and must never notice anything."""
    started, steps = asyncio.Event(), 0

    async def play() -> None:
        nonlocal steps
        async with client_of(url, token).session() as session:
            await session.reset(TASK, seed=7, max_steps=1_000_000)
            while True:
                steps += 1
                result = await session.step(Move(steps % 100, 3))
                assert result.terminal is None and result.step_index == steps
                started.set()

    playing = asyncio.create_task(play())
    starting = asyncio.create_task(started.wait())
    await asyncio.wait({playing, starting}, return_when=asyncio.FIRST_COMPLETED)
    before = steps
    try:
        yield
        await wait_for(lambda: steps > before or playing.done())
    finally:
        starting.cancel()
        playing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await playing


async def counters(url: str) -> dict[str, int]:
    return (await client_of(url).status())["counters"]


# --- lines


@pytest.fixture
async def line(server, place):
    async with Line(place.path / "serve.sock", place.path / "line.sock") as line:
        yield line


async def test_a_line_cut_in_the_middle_of_a_step(server, line):
    async with somebody_else(server.url), client_of(line.url).session() as session:
        await session.reset(TASK, seed=0)
        step = asyncio.create_task(session.step(Wait(0.5)))
        await wait_for(lambda: _in_step(server.url))
        line.cut()
        result = await step
        assert result.terminal is None and result.step_index == 1
        assert (await session.step(Move(1, 1))).step_index == 2
        assert (await counters(server.url))["resumed"] == 1


async def _in_step(url: str) -> bool:
    """Whether a step that takes long is under way."""
    desktops = (await client_of(url).status())["desktops"]
    return any(one["phase"] == "step" and one["phase_s"] > 0.1 for one in desktops)


async def test_a_reply_lost_after_its_click_was_carried_out(server, line):
    async with somebody_else(server.url), client_of(line.url).session() as session:
        await session.reset(TASK, seed=3)
        target = await session.oracle()
        assert isinstance(target, Click)
        line.lose_next_reply = True
        result = await session.step(target)
        assert line.lost.is_set() and result.step_index == 1
        ended = await session.finish(TerminalState.PARSE_ERROR)
        clicked = ended.evaluation.detail.removeprefix("clicked ").partition(";")[0]
        assert len(clicked.split(", ")) == 1 and clicked != "nothing"  # exactly one click, says the desktop
        assert (await counters(server.url))["resent"] == 1
        await session.reset(TASK, seed=3)
        for _ in range(2):
            line.lose_next_reply = True
            result = await session.step(await session.oracle())
        assert result.terminal is TerminalState.DONE and result.evaluation.score == 1.0


@pytest.mark.thorough
async def test_a_slow_line_delays_its_own_client_only(server, line):
    line.chunk = 512
    async with somebody_else(server.url), client_of(line.url).session() as session:
        assert (await session.reset(TASK, seed=0)).terminal is None
        assert (await session.step(await session.oracle())).step_index == 1
        assert (await session.step(await session.oracle())).evaluation.score == 1.0


Forward = Callable[[bytes], list[bytes]]


@contextlib.asynccontextmanager
async def frames_through(
    place: Place, requests: Forward = lambda frame: [frame], replies: Forward = lambda frame: [frame]
) -> AsyncIterator[str]:
    """The URL of a proxy that passes on what two functions make of each frame."""
    target, path = place.url.removeprefix("ws+unix://"), str(place.path / "frames.sock")
    options = {"compression": None, "max_size": None}

    async def pump(source, sink, forward: Forward) -> None:
        with contextlib.suppress(websockets.ConnectionClosed):
            async for frame in source:
                for made in forward(frame):
                    await sink.send(made)
        await sink.close()

    async def serve(near) -> None:
        async with unix_connect(target, "ws://localhost/", **options) as far:
            await asyncio.gather(pump(near, far, requests), pump(far, near, replies))

    async with unix_serve(serve, path, **options):
        yield f"ws+unix://{path}"


class Duplicator:
    """Sends each frame twice, the greeting excepted."""

    def __init__(self) -> None:
        self.greeted = False

    def __call__(self, frame: bytes) -> list[bytes]:
        greeted, self.greeted = self.greeted, True
        return [frame, frame] if greeted else [frame]


class Reorderer:
    """Holds each reply back and sends it again after the next one, out of order."""

    def __init__(self) -> None:
        self.before: list[bytes] = []
        self.greeted = False

    def __call__(self, frame: bytes) -> list[bytes]:
        greeted, self.greeted = self.greeted, True
        made = [frame, *self.before]
        self.before = [frame] if greeted else []
        return made


@pytest.mark.parametrize(
    ("requests", "replies"),
    [(Duplicator, None), (None, Duplicator), (Duplicator, Duplicator), (None, Reorderer), (Duplicator, Reorderer)],
    ids=["requests twice", "replies twice", "both twice", "replies out of order", "both"],
)
async def test_duplicated_and_reordered_frames_do_nothing_twice(server, place, requests, replies):
    def same(frame: bytes) -> list[bytes]:
        return [frame]

    async with frames_through(place, requests() if requests else same, replies() if replies else same) as url:
        async with somebody_else(server.url), client_of(url).session() as session:
            for seed in range(3):
                result = await session.reset(TASK, seed=seed)
                for index in (1, 2):
                    result = await session.step(await session.oracle())
                    assert result.step_index == index and result.info["seed"] == seed
                assert result.evaluation.score == 1.0  # so no click was carried out twice


@pytest.mark.thorough
async def test_requests_out_of_order_end_their_connection_with_an_error(server, place):
    held: list[bytes] = []

    def swap(frame: bytes) -> list[bytes]:
        held.append(frame)
        return [frame, held[-2]] if len(held) == 4 else [frame]  # the one before comes again, late

    async with frames_through(place, requests=swap) as url, somebody_else(server.url):
        async with client_of(url).session() as session:
            await session.reset(TASK, seed=0)
            await session.step(Type("a"))
            result = await session.step(Type("b"))
            assert result.step_index == 2  # it was answered before
            with pytest.raises(ProtocolError, match="request 2 comes after request 3"):
                await session.step(Type("c"))


# --- who may connect


async def test_wrong_missing_and_revoked_tokens(place):
    path = place.path / "tokens.yaml"
    path.write_text("tokens:\n" + "\n".join(token_line(name, f"{name}-token") for name in ("alice", "bob")))
    async with ServeProcess(place, "--tokens", str(path), "--warm", "0") as server:
        async with somebody_else(server.url, "bob-token"):
            for token, match in ((None, "no token was given"), ("wrong", "the token is wrong")):
                with pytest.raises(ClusterError, match=match) as caught:
                    await client_of(server.url, token).status()
                assert caught.value.code == ErrorCode.AUTH
            async with client_of(server.url, "alice-token").session() as session:
                await session.reset(TASK, seed=0)
                step = asyncio.create_task(session.step(Wait(60)))
                await wait_for(lambda: _bobs_view_of_a_step(server.url))
                path.write_text("tokens:\n" + token_line("bob", "bob-token"))
                os.kill(server.pid, signal.SIGHUP)
                with pytest.raises(ClusterError, match="token") as caught:
                    await step
                assert caught.value.code == ErrorCode.AUTH
        assert "alice-token" not in server.log() and "bob-token" not in server.log()


async def _bobs_view_of_a_step(url: str) -> bool:
    desktops = (await client_of(url, "bob-token").status())["desktops"]
    return any(one["phase"] == "step" and one["phase_s"] > 0.1 for one in desktops)


# --- bad input


async def test_bad_input_gives_typed_errors_and_the_session_goes_on(server, place):
    async with somebody_else(server.url), client_of(server.url).session() as session:
        await session.reset(TASK, seed=0)
        with pytest.raises(UnknownTaskError, match="did you mean"):
            await session.reset("fake/two-stepz", seed=0)
        await session.reset(TASK, seed=0)
        result = await session.step(Click(5000, 3))
        assert result.terminal is None and "outside of the 168x224 screen" in result.observation.action_error
        with pytest.raises(ProtocolError, match="more than the server takes"):
            await session.reset({"id": "x", "instruction": "y" * protocol.MAX_REQUEST_BYTES}, seed=0)
        with pytest.raises(ClusterError) as caught:
            await session.call("step", {"action": {"kind": "exec"}}, 5.0)
        assert caught.value.code == ErrorCode.BAD_ACTION
        assert (await session.reset(TASK, seed=0)).terminal is None


@pytest.mark.parametrize(
    ("frames", "match", "close_code"),
    [
        ([protocol.encode_hello(Hello(("raw",), protocol=99))], "speaks version 1, the client 99: update", 4400),
        (
            [protocol.encode_hello(Hello(("raw",))), protocol.encode_request(Request(1, "format", 1.0))],
            "unknown operation 'format'; known: acquire, reset",
            4400,
        ),
        ([protocol.encode_hello(Hello(("raw",), resume="nobody"))], "the session is gone", 4408),
        ([protocol.encode_hello(Hello(("raw",))), bytes(protocol.MAX_REQUEST_BYTES + 1)], None, 1009),
    ],
    ids=["version", "operation", "session", "size"],
)
async def test_what_breaks_the_protocol_ends_its_own_connection(server, frames, match, close_code):
    async with somebody_else(server.url):
        connection = await unix_connect(server.url.removeprefix("ws+unix://"), "ws://localhost/", compression=None)
        answers = []
        with contextlib.suppress(websockets.ConnectionClosed):
            for frame in frames:
                await connection.send(frame)
                answers.append(await connection.recv())
            await connection.recv()
        await connection.wait_closed()
        if match is None:  # the server closes while we still send, so that its reason may get lost
            assert connection.close_code in (close_code, 1006) and len(answers) == 1
        else:
            error = protocol.decode_reply(answers[-1])
            assert connection.close_code == close_code
            assert error.id == -1 and match in error.message
            assert error.code in (ErrorCode.PROTOCOL, ErrorCode.SESSION_LOST)


@pytest.mark.thorough
async def test_an_expired_session_a_full_server_and_a_second_client(place):
    options = ("--desktops", "2", "--warm", "0", "--lifetime", "1.5", "--idle-timeout", "60")
    async with ServeProcess(place, *options) as server:
        client = client_of(server.url)
        async with client.session() as first, client.session() as second, client.session() as third:
            for session in (first, second):
                await session.reset(TASK, seed=0)
            with pytest.raises(ClusterError, match="stayed lent: use fewer sessions, more --desktops") as caught:
                await third.reset(TASK, seed=0, deadline_s=0.2)
            assert caught.value.code == ErrorCode.CAPACITY
            with pytest.raises(ClusterError, match="open a new one") as caught:
                await client.connect(client.records[0], first.token)
            assert caught.value.code == ErrorCode.BUSY
            assert (await third.reset(TASK, seed=0)).timings["queue"] > 0.0  # when the first session has had its time
            result = await first.step(Move(1, 1))
            assert result.terminal is TerminalState.ENV_ERROR and "reset starts anew" in result.evaluation.detail
            await second.close()
            assert (await first.reset(TASK, seed=0)).terminal is None


# --- random frames


def random_frames(seed: int) -> Iterator[tuple[bool, bytes | str]]:
    """Whether after the greeting, and what: noise, damaged frames, and well-formed ones that mean nothing."""
    rng = random.Random(seed)
    valid = [
        protocol.encode_hello(Hello(("raw",))),
        protocol.encode_request(Request(1, "reset", 1.0, {"task": TASK, "seed": 0})),
        protocol.encode_request(Request(2, "step", 1.0, {"action": {"kind": "click", "x": 1, "y": 2}})),
    ]

    def value(depth: int = 0) -> object:
        simple = [None, True, -1, 2**63, 1e308, float("nan"), "", "step", "\x00é", b"\xff", rng.random()]
        if depth > 3 or rng.random() < 0.6:
            return rng.choice(simple)
        if rng.random() < 0.5:
            return [value(depth + 1) for _ in range(rng.randrange(3))]
        return {rng.choice(["a", "id", "kind", "task"]): value(depth + 1) for _ in range(rng.randrange(3))}

    def damaged() -> bytes:
        frame = bytearray(rng.choice(valid))
        for _ in range(rng.randint(1, 5)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        return bytes(frame[: rng.randint(0, len(frame))])

    def senseless() -> bytes:
        header = {key: value() for key in ("id", "op", "deadline_ms", "args", "protocol", "codecs", "resume")}
        header = {key: held for key, held in header.items() if rng.random() < 0.8}
        if rng.random() < 0.5:
            header |= {"id": rng.randint(1, 9), "op": rng.choice(protocol.OPERATIONS), "deadline_ms": 5}
        packed = msgpack.packb(header)
        return struct.pack(">I", len(packed)) + packed + rng.randbytes(rng.randrange(3))

    kinds: list[Callable[[], bytes | str]] = [
        lambda: rng.randbytes(rng.randrange(80)),
        lambda: struct.pack(">I", rng.randrange(100)) + rng.randbytes(rng.randrange(80)),
        lambda: "text" * rng.randrange(4),
        damaged,
        senseless,
    ]
    while True:
        yield rng.random() < 0.7, rng.choice(kinds)()


@pytest.mark.thorough
@pytest.mark.parametrize("number", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_random_frames_leave_a_server_that_serves(place, number):
    """Each is answered, or ends its connection with an error: none is left without either, and none is a defect."""
    async with ServeProcess(place, "--desktops", "3", "--warm", "0", "--grace", "0.5") as server:
        await _attack(server, number)
        async with client_of(server.url).session() as session:
            result = await session.reset(TASK, seed=0)
            while result.terminal is None:
                result = await session.step(await session.oracle())
            assert result.evaluation.score == 1.0


async def _attack(server: ServeProcess, number: int) -> None:
    path, hello = server.url.removeprefix("ws+unix://"), protocol.encode_hello(Hello(("raw",)))
    frames = random_frames(seed=number)
    sent = 0

    async def attack() -> None:
        nonlocal sent
        while sent < number:
            async with unix_connect(path, "ws://localhost/", compression=None, max_size=None) as connection:
                with contextlib.suppress(websockets.ConnectionClosed):
                    greeted, frame = next(frames)
                    if greeted:
                        await connection.send(hello)
                        protocol.decode_welcome(await connection.recv())
                    while sent < number:
                        sent += 1
                        await connection.send(frame)
                        async with asyncio.timeout(20.0):
                            protocol.unpack(await connection.recv())
                        frame = next(frames)[1]

    async with somebody_else(server.url):
        await asyncio.gather(*(attack() for _ in range(4)))
        status = await client_of(server.url).status()
        assert status["counters"]["protocol_errors"] > number // 10
        assert status["counters"].get("internal_errors", 0) == 0, server.log()
        assert "Traceback" not in server.log()


# --- the end


@pytest.mark.thorough
async def test_sigterm_drains_and_a_second_one_does_not_wait(place):
    async with ServeProcess(place, "--drain", "600", "--warm", "0") as server:
        client = client_of(server.url)
        async with client.session() as playing, client.session() as late:
            await playing.reset(TASK, seed=0)
            os.kill(server.pid, signal.SIGTERM)
            with pytest.raises(ClusterError, match="about to stop") as caught:
                await wait_for(lambda: _reset(late))
            assert caught.value.code == ErrorCode.SHUTDOWN
            result = await playing.step(await playing.oracle())
            assert result.terminal is None
            os.kill(server.pid, signal.SIGTERM)
            assert await asyncio.wait_for(server.process.wait(), 15.0) == 0


async def _reset(session) -> bool:
    """Play until the server wants no more; always false."""
    await session.reset(TASK, seed=1)
    return False


async def test_a_drain_ends_with_the_last_episode(place):
    async with ServeProcess(place, "--drain", "600", "--warm", "0") as server:
        async with client_of(server.url).session() as session:
            result = await session.reset(TASK, seed=0)
            os.kill(server.pid, signal.SIGTERM)
            while result.terminal is None:
                result = await session.step(await session.oracle())
            assert result.evaluation.score == 1.0
            assert await asyncio.wait_for(server.process.wait(), 15.0) == 0
