"""A client of the Chrome DevTools protocol for one page, through a desktop's own loopback.

Invariants:
    - Calls may overlap; each gets its own answer. A call that the browser rejects raises `DevToolsError`.
    - When the browser or the connection dies, every waiting and later call raises `DesktopError`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from dart_gym.desktops.base import Desktop
from dart_gym.errors import DesktopError, DesktopTimeoutError

_MAX_MESSAGE = 64 * 1024 * 1024


class DevToolsError(DesktopError):
    """The browser answered a call with an error, or a script threw."""


class DevTools:
    """Connection to the first page of a browser. Make it with `connect`."""

    def __init__(self, socket: ClientConnection, timeout: float) -> None:
        self._socket = socket
        self._timeout = timeout
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._events: dict[str, list[asyncio.Future[dict[str, Any]]]] = defaultdict(list)
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, desktop: Desktop, port: int = 1337, *, timeout: float = 30.0) -> DevTools:
        """Connect to the first page of the browser that listens on a port inside the desktop.

        Raises:
            DesktopError: no browser there.
        """
        path = str(await desktop.open_port(port))
        try:
            async with asyncio.timeout(timeout):
                page = next((target for target in await targets(path, port) if target["type"] == "page"), None)
                if page is None:
                    raise DesktopError(f"the browser on port {port} has no page; next step: start a new desktop")
                uri = f"ws://127.0.0.1:{port}/devtools/page/{page['id']}"
                socket = await unix_connect(
                    path, uri, max_size=_MAX_MESSAGE, compression=None, ping_interval=None, proxy=None
                )
        except TimeoutError:
            raise DesktopTimeoutError(f"the browser on port {port} did not answer within {timeout:g} s") from None
        except (httpx.HTTPError, OSError, InvalidHandshake, ConnectionClosed) as error:
            raise DesktopError(f"no browser answers on port {port}: {error!r}") from error
        return cls(socket, timeout)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol, such as `Page.navigate`, and return its result."""
        if self._reader.done():
            raise DesktopError("the connection to the browser is closed")
        number = next(self._ids)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            async with asyncio.timeout(self._timeout):
                await self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
                reply = await future
        except TimeoutError:
            message = f"the browser did not answer {method} within {self._timeout:g} s"
            raise DesktopTimeoutError(message) from None
        except ConnectionClosed as error:
            raise DesktopError(f"the browser closed the connection: {error}") from error
        finally:
            del self._waiting[number]
        if "error" in reply:
            raise DevToolsError(f"{method}: {reply['error'].get('message', reply['error'])}")
        return reply["result"]

    async def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page; a promise is awaited. Raises `DevToolsError` if it throws."""
        reply = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if problem := reply.get("exceptionDetails"):
            text = problem.get("exception", {}).get("description") or problem.get("text")
            raise DevToolsError(f"script failed: {text}")
        return reply["result"].get("value")

    async def navigate(self, url: str) -> None:
        """Load a page and wait until it is loaded and drawn (before that, Chromium drops what the user does)."""
        await self.call("Page.enable")
        loaded = self.event("Page.loadEventFired")
        try:
            reply = await self.call("Page.navigate", url=url)
            if "errorText" in reply:
                raise DevToolsError(f"cannot load {url}: {reply['errorText']}")
            if "loaderId" not in reply:
                return  # a jump within the page: there is no load event
            async with asyncio.timeout(self._timeout):
                await loaded
        except TimeoutError:
            raise DesktopTimeoutError(f"{url} did not load within {self._timeout:g} s") from None
        finally:
            loaded.cancel()
        await self.next_frame()

    async def next_frame(self) -> None:
        """Wait until the page has drawn what it shows now: two animation frames, the first may be under way."""
        await self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def event(self, method: str) -> asyncio.Future[dict[str, Any]]:
        """A future of the next event of a kind (its domain must be enabled)."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._events[method].append(future)
        return future

    async def close(self) -> None:
        """End the connection; the browser goes on."""
        await self._socket.close()
        await self._reader

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                self._dispatch(json.loads(message))
            problem = "the connection to the browser was closed"
        except ConnectionClosed as error:
            problem = f"the browser closed the connection: {error}"
        futures = [*self._waiting.values(), *itertools.chain.from_iterable(self._events.values())]
        for future in futures:
            if not future.done():
                future.set_exception(DesktopError(problem))
                future.exception()  # whoever still awaits it gets it; nobody is warned about it otherwise

    def _dispatch(self, message: dict[str, Any]) -> None:
        if "id" in message:
            future = self._waiting.get(message["id"])
            if future is not None and not future.done():
                future.set_result(message)
            return
        for future in self._events.pop(message["method"], ()):
            if not future.done():
                future.set_result(message.get("params", {}))


async def targets(path: str, port: int) -> list[dict[str, Any]]:
    """The browser's list of pages and workers (`GET /json`), through a Unix socket."""
    transport = httpx.AsyncHTTPTransport(uds=path, verify=False)  # no TLS here: saves 60 ms of loading certificates
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        return (await client.get(f"http://127.0.0.1:{port}/json")).json()
