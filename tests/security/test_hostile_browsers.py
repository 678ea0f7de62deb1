"""What a page or a program in a browser's place says is bounded, in bytes and in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time

import pytest
from websockets.asyncio.server import unix_serve

from dart_gym.core.errors import DesktopError
from dart_gym.desktops.applications import devtools
from dart_gym.desktops.applications.devtools import DevTools

pytestmark = pytest.mark.security


@pytest.fixture
async def speak(tmp_path):
    """Serves a websocket that says what a coroutine function says; gives a client that is connected to it."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(conversation) -> DevTools:
            path = str(tmp_path / "socket")
            await stack.enter_async_context(unix_serve(conversation, path, max_size=None))
            client = await DevTools.attach(path, 1, "page")
            stack.push_async_callback(client.close)
            return client

        yield start


async def floods(connection) -> None:
    """Events without end."""
    event = json.dumps({"method": "Runtime.consoleAPICalled", "params": {"text": "x" * 1_000_000}})
    while True:
        await connection.send(event)


async def says_too_much(connection) -> None:
    """One answer that is too large."""
    await connection.recv()
    await connection.send(json.dumps({"id": 1, "result": {"result": {"value": "x" * 9_000_000}}}))
    await connection.wait_closed()


async def talks_nonsense(connection) -> None:
    """No JSON that ends."""
    await connection.recv()
    await connection.send("[" * 200_000)
    await connection.wait_closed()


async def answers_what_nobody_asked(connection) -> None:
    """Answers without end, to calls that nobody made."""
    answer = json.dumps({"id": 1_000_000, "result": {"value": "x" * 500_000}})
    while True:
        await connection.send(answer)


@pytest.mark.parametrize("conversation", [floods, says_too_much, talks_nonsense, answers_what_nobody_asked])
async def test_a_browser_that_misbehaves_is_left(speak, conversation):
    client = await speak(conversation)
    async with asyncio.timeout(20):
        with pytest.raises(DesktopError):
            await client.evaluate("1")
        with pytest.raises(DesktopError, match="closed"):
            await client.evaluate("1")


@pytest.mark.parametrize(
    "answer",
    [
        *({"id": 1}, {"id": 1, "result": []}, {"id": 1, "error": "text"}, {"id": []}, {"none": {}}, [], 5, None),
        *({"id": 1, "result": {"result": 5}}, {"id": 1, "result": {}}, {"id": 1, "result": {"exceptionDetails": 5}}),
        {"id": 1, "result": {"exceptionDetails": {"exception": 5}, "result": {}}},
    ],
)
async def test_an_answer_of_another_shape_is_an_error_of_the_desktop(speak, answer):
    async def answers(connection) -> None:
        await connection.recv()
        await connection.send(json.dumps(answer))
        await connection.wait_closed()

    async with asyncio.timeout(20):
        with pytest.raises(DesktopError):
            await (await speak(answers)).evaluate("1")


def intricate(parts: int) -> str:
    """An event that takes longest to read for its length: three bytes a part."""
    return '{"method": "x", "params": [' + "[]," * parts + "0]}"


FLOODS = """
import asyncio, sys
message = open(sys.argv[2]).read()
from websockets.asyncio.server import unix_serve
async def flood(connection):
    await connection.recv()
    while True:
        await connection.send(message)
async def main():
    async with unix_serve(flood, sys.argv[1], compression=None):
        print("listening", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("parts", [300_000, 2_500_000])
async def test_a_flood_leaves_the_event_loop_to_others(tmp_path, monkeypatch, parts):
    monkeypatch.setattr(devtools, "MAX_UNASKED", 20_000_000)
    path = str(tmp_path / "socket")
    (tmp_path / "message").write_text(intricate(parts))
    command = [sys.executable, "-c", FLOODS, path, str(tmp_path / "message")]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        await process.stdout.readline()
        client = await DevTools.attach(path, 1, "page")
        evaluating = asyncio.ensure_future(client.evaluate("1"))
        one, longest, last = time_of_one(), 0.0, time.thread_time()
        while not evaluating.done():
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now
        with pytest.raises(DesktopError):
            await evaluating
        await client.close()
    finally:
        process.kill()
        await process.wait()
    print(f"held up for {longest:.3f} s by messages of {one:.3f} s")
    assert longest < 3 * one


def time_of_one() -> float:
    """Seconds of the processor that reading a message of the largest size takes."""
    message = intricate(300_000)
    started = time.thread_time()
    json.loads(message)
    return time.thread_time() - started


async def answers_without_end(reader, writer) -> None:
    """HTTP whose body never ends."""
    with contextlib.suppress(ConnectionError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[")
        while True:
            writer.write(b" " * 65536)
            await writer.drain()


async def drips(reader, writer) -> None:
    """HTTP whose body comes a byte at a time, so that no single read is late."""
    with contextlib.suppress(ConnectionError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n[")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("answer", [answers_without_end, drips])
async def test_a_listing_has_an_end(tmp_path, monkeypatch, answer):
    monkeypatch.setattr(devtools, "LISTING_S", 1.0)
    async with await asyncio.start_unix_server(answer, tmp_path / "socket"), asyncio.timeout(20):
        with pytest.raises(DesktopError):
            await devtools.targets(str(tmp_path / "socket"), 1)


def page(**values):
    return {"id": "A1", "type": "page", "url": "about:blank", **values}


@pytest.mark.parametrize(
    "answer",
    [
        *("[" * 100_000, "5", "null", "{}", "[5]", "[null]", '[{"type": "page"}]', "no json"),
        *(json.dumps([page(**odd)]) for odd in ({"id": 5}, {"id": "../x y\r\nHost: z"}, {"url": None}, {"type": []})),
    ],
)
async def test_a_listing_of_another_shape_is_an_error_of_the_desktop(tmp_path, answer):
    async def answers(reader, writer) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + answer.encode())

    browser = devtools.Browser(tmp_path / "socket", 1)
    async with await asyncio.start_unix_server(answers, tmp_path / "socket"), asyncio.timeout(20):
        for asked in (
            browser.pages(),
            browser.open("http://x", timeout=5),
            DevTools.attach(str(tmp_path / "socket"), 1),
        ):
            with pytest.raises(DesktopError):
                await asked
