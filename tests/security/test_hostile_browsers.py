"""What a page or a program in a browser's place says is bounded, in bytes and in time."""

from __future__ import annotations

import asyncio
import contextlib
import json

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


@pytest.mark.parametrize("conversation", [floods, says_too_much, talks_nonsense])
async def test_a_browser_that_misbehaves_is_left(speak, conversation):
    client = await speak(conversation)
    async with asyncio.timeout(20):
        with pytest.raises(DesktopError):
            await client.evaluate("1")
        with pytest.raises(DesktopError, match="closed"):
            await client.evaluate("1")


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
    monkeypatch.setattr(devtools, "_LISTING_S", 1.0)
    async with await asyncio.start_unix_server(answer, tmp_path / "socket"), asyncio.timeout(20):
        with pytest.raises(DesktopError):
            await devtools.targets(str(tmp_path / "socket"), 1)
