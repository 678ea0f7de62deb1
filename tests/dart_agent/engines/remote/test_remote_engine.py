"""A remote engine answers as the engine behind it, and says so when it is gone."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import unix_connect
from websockets.asyncio.server import ServerConnection, unix_serve

from dart_agent.engines.base.engine import (
    EngineError,
    EngineInfo,
    EngineTimeout,
    Generation,
    Prompt,
    RequestRefused,
    Sampling,
)
from dart_agent.engines.remote import engine_frames
from dart_agent.engines.remote.engine_server import EngineServer
from dart_agent.engines.remote.remote_engine import RemoteEngine
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils.processes import die_with_parent, start_time


class EchoEngine:
    """Answers with the prompt's ids and the sum of the first image, after as many turns of the loop as max_tokens."""

    def __init__(self):
        self.version, self.cancelled, self.started = 0, 0, asyncio.Event()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        self.started.set()
        try:
            for _ in range(sampling.max_tokens):
                await asyncio.sleep(0)
            if sampling.temperature == 9.0:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if sampling.temperature == 8.0:
            raise RequestRefused("too hot")
        total = str(int(prompt.images[0].sum())) if prompt.images else ""
        logprobs = tuple(-float(i) / 3 for i in prompt.token_ids)
        return Generation(total, prompt.token_ids, logprobs, (self.version, self.version), "stop", "echo", (0.5, 0.25))

    async def update_weights(self, path: str, version: int) -> None:
        self.version = version

    async def info(self) -> EngineInfo:
        return EngineInfo("echo", "none", self.version)

    async def close(self) -> None:
        """Nothing to close."""


def test_errors_of_unknown_types_are_engine_errors():
    error = engine_frames.read_error({"error": "melted", "kind": "EngineMelted"})
    assert (type(error), str(error)) == (EngineError, "melted")


@pytest.fixture
def url(tmp_path):
    return f"ws+unix://{tmp_path}/engine.sock"


@pytest.fixture
async def echo():
    return EchoEngine()


@pytest.fixture
async def remote(url):
    remote = RemoteEngine(url)
    yield remote
    await remote.close()


IMAGE = np.arange(28 * 56 * 3, dtype=np.uint32).astype(np.uint8).reshape(28, 56, 3)


async def test_calls(echo, remote, url):
    async with EngineServer(echo).listening(url):
        result = await remote.generate(Prompt((3, 1, 4), (IMAGE, IMAGE[:, ::-1])), Sampling(seed=2**62))
        assert result == await echo.generate(Prompt((3, 1, 4), (IMAGE,)), Sampling())
        await remote.update_weights("somewhere", 5)
        assert await remote.info() == EngineInfo("echo", "none", 5)


async def test_replies_find_their_calls(echo, remote, url):
    async with EngineServer(echo).listening(url):
        calls = [remote.generate(Prompt((i,)), Sampling(max_tokens=20 - i)) for i in range(20)]
        assert [result.response_ids for result in await asyncio.gather(*calls)] == [(i,) for i in range(20)]


async def test_errors_of_the_engine_cross(echo, remote, url):
    async with EngineServer(echo).listening(url):
        with pytest.raises(RequestRefused, match="too hot"):
            await remote.generate(Prompt((1,)), Sampling(temperature=8.0))
        assert (await remote.generate(Prompt((1,)), Sampling())).response_ids == (1,)


async def test_reconnects_after_the_server_was_away(echo, remote, url):
    with pytest.raises(EngineError, match="is it running"):
        await remote.info()
    async with EngineServer(echo).listening(url):
        await remote.info()
        waiting = asyncio.create_task(remote.generate(Prompt((1,)), Sampling(temperature=9.0)))
        await echo.started.wait()
    with pytest.raises(EngineError, match="went away"):
        await waiting
    with pytest.raises(EngineError, match="is it running"):
        await remote.info()
    async with EngineServer(echo).listening(url):
        assert (await remote.info()).name == "echo"


async def test_a_client_that_goes_takes_its_requests_with_it(echo, url):
    async with EngineServer(echo).listening(url), asyncio.timeout(10):
        remote = RemoteEngine(url)
        waiting = asyncio.create_task(remote.generate(Prompt((1,)), Sampling(temperature=9.0)))
        await echo.started.wait()
        await remote.close()
        with pytest.raises(EngineError):
            await waiting
        while not echo.cancelled:
            await asyncio.sleep(0.001)
        with pytest.raises(EngineError, match="closed"):
            await remote.info()


async def test_a_server_that_dies_while_a_request_is_sent_leaves_no_error_that_nobody_saw(url):
    """The reply is failed by the reader while the call still waits in `send`: the call's own error is enough."""
    unseen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context["message"]))
    connections: list[ServerConnection] = []

    async def never_reads(connection: ServerConnection) -> None:
        connections.append(connection)
        connection.transport.pause_reading()
        await connection.wait_closed()

    big = Prompt((1,), (np.zeros((2048, 2048, 3), np.uint8),))  # more than the sockets hold
    async with unix_serve(never_reads, url.removeprefix("ws+unix://")):
        remote = RemoteEngine(url)
        calls = [asyncio.create_task(remote.generate(big, Sampling())) for _ in range(3)]
        async with asyncio.timeout(20):
            while len(remote.waiting) < 3:
                await asyncio.sleep(0)
        connections[0].transport.abort()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, EngineError) and "went away" in str(outcome)
        del calls, outcome
        await remote.close()
    gc.collect()
    assert not unseen


async def test_cancelled_calls_leave_the_connection_usable(echo, remote, url):
    async with EngineServer(echo).listening(url):
        waiting = asyncio.create_task(remote.generate(Prompt((1,)), Sampling(max_tokens=50)))
        await echo.started.wait()
        waiting.cancel()
        assert (await remote.generate(Prompt((2,)), Sampling())).response_ids == (2,)


async def test_token(echo, tmp_path):
    url = f"ws+unix://{tmp_path}/e.sock"
    async with EngineServer(echo, token="secret").listening(url):
        for token in ("", "wrong"):
            remote = RemoteEngine(url, token=token)
            with pytest.raises(EngineError, match="DART_ENGINE_TOKEN"):
                await remote.info()
        remote = RemoteEngine(url, token="secret")
        assert (await remote.info()).name == "echo"
        await remote.close()
    with pytest.raises(ConfigurationError, match="other machines"):
        async with EngineServer(echo).listening("ws://0.0.0.0:0"):
            pass


async def test_loopback(echo):
    async with EngineServer(echo).listening("ws://127.0.0.1:0") as url:
        remote = RemoteEngine(url)
        assert (await remote.info()).name == "echo"
        await remote.close()


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"\xc1", "not msgpack"),
        (b"", "not msgpack"),
        (engine_frames.pack({"op": "info"}), "integer id"),
        (engine_frames.pack({"id": 1}), "unknown operation"),
        (engine_frames.pack({"id": 1, "op": "generate"}), "bad generate request"),
        (
            engine_frames.pack({"id": 1, "op": "generate", "tokens": b"", "images": [(9, 9, b"")], "sampling": {}}),
            "bad",
        ),
        (engine_frames.pack({"id": 1, "op": "generate", "tokens": b"abc", "images": [], "sampling": {}}), "bad"),
        (engine_frames.pack({"id": 1, "op": "update_weights", "path": 3}), "needs a path"),
    ],
)
async def test_bad_frames_get_an_answer(echo, url, frame, says):
    async with EngineServer(echo).listening(url), unix_connect(url.removeprefix("ws+unix://"), "ws://x/") as raw:
        await raw.send(frame)
        assert says in engine_frames.unpack(await raw.recv())["error"]
        await raw.send(engine_frames.pack({"id": 2, "op": "info"}))
        assert engine_frames.unpack(await raw.recv())["result"]["name"] == "echo"


@given(st.binary())
def test_any_bytes_unpack_or_say_why(frame):
    try:
        message = engine_frames.unpack(frame)
    except engine_frames.FrameError as error:
        assert str(error)
    else:
        assert isinstance(message["id"], int)


@given(
    st.lists(st.integers(0, 2**31 - 1), max_size=20),
    st.builds(
        Sampling,
        max_tokens=st.integers(1, 1000),
        temperature=st.floats(0, 5),
        seed=st.none() | st.integers(0, 2**63 - 1),
        stop_ids=st.lists(st.integers(0, 9)).map(tuple),
        suppressed_ids=st.lists(st.integers(0, 9)).map(tuple),
        given_ids=st.lists(st.integers(0, 9)).map(tuple),
    ),
)
def test_requests_survive_the_wire(ids, sampling):
    frame = engine_frames.pack({"id": 1, **engine_frames.prompt_fields(Prompt(tuple(ids), (IMAGE,)), sampling)})
    prompt, back = engine_frames.read_prompt(engine_frames.unpack(frame))
    assert (prompt.token_ids, back) == (tuple(ids), sampling)
    assert np.array_equal(prompt.images[0], IMAGE)


# The real process


def start_server(tiny_dir, url: str) -> subprocess.Popen:
    argv = [sys.executable, "-m", "dart_agent.engines.remote.engine_server", "--model", str(tiny_dir), "--listen", url]
    argv += ["--name", "r7", "--version", "3", "--die-with-parent"]
    return subprocess.Popen(argv, preexec_fn=die_with_parent(), stderr=subprocess.DEVNULL)


@pytest.mark.thorough
@pytest.mark.train
async def test_server_process(tiny_dir, url, remote, tokens, vision):
    process = start_server(tiny_dir, url)
    try:
        deadline = time.monotonic() + 60
        while not os.path.exists(url.removeprefix("ws+unix://")):
            assert process.poll() is None and time.monotonic() < deadline
            await asyncio.sleep(0.02)
        prompt = Prompt(
            (tokens.im_start_id, tokens.vision_start_id, *[tokens.image_pad_id] * 2, tokens.vision_end_id), (IMAGE,)
        )
        sampling = Sampling(max_tokens=5, seed=1, suppressed_ids=tokens.suppressed_ids)
        first, second = await asyncio.gather(remote.generate(prompt, sampling), remote.generate(prompt, sampling))
        assert first.response_ids == second.response_ids
        assert (first.engine, first.version) == ("r7", (3, 3))
        await remote.update_weights(str(tiny_dir), 4)
        assert (await remote.generate(prompt, sampling)).version == (4, 4)
        assert (await remote.info()).requests == 3
        with pytest.raises(EngineError, match="keeps version 4"):
            await remote.update_weights("/nowhere", 5)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 15) == 0
        assert not os.path.exists(url.removeprefix("ws+unix://"))
        with pytest.raises(EngineError):
            await remote.info()
    finally:
        process.kill()
        process.wait()


@pytest.mark.thorough
@pytest.mark.train
async def test_server_ends_with_its_parent(tiny_dir, url):
    argv = [sys.executable, "-m", "dart_agent.engines.remote.engine_server", "--model", str(tiny_dir), "--listen", url]
    argv.append("--die-with-parent")
    code = f"import subprocess; p = subprocess.Popen({argv!r}); print(p.pid, flush=True); p.wait()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        pid = int(parent.stdout.readline())
        deadline = time.monotonic() + 60
        while not os.path.exists(url.removeprefix("ws+unix://")):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        parent.kill()
        while start_time(pid) is not None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        assert not os.path.exists(url.removeprefix("ws+unix://"))
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


async def test_an_engine_that_takes_requests_and_never_answers_is_late(echo, url):
    async with EngineServer(echo).listening(url):
        remote = RemoteEngine(url, request_timeout_s=0.2)
        with pytest.raises(EngineTimeout, match="did not answer within 0.2 s"):
            await remote.generate(Prompt((1,)), Sampling(temperature=9.0))
        assert (await remote.generate(Prompt((1,)), Sampling())).response_ids == (1,), "the connection is of use still"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):  # the caller's own limit stays what it is
                await remote.generate(Prompt((1,)), Sampling(temperature=9.0))
        await remote.close()


async def test_a_server_that_says_nothing_is_late(tmp_path):
    kept = []  # a writer that nobody holds is closed from Python 3.13 on
    silent = await asyncio.start_unix_server(lambda reader, writer: kept.append(writer), tmp_path / "s")
    remote = RemoteEngine(f"ws+unix://{tmp_path}/s", request_timeout_s=0.2)
    with pytest.raises(EngineTimeout, match="within 0.2 s"):
        await remote.info()
    await remote.close()
    for writer in kept:
        writer.close()
    silent.close()
