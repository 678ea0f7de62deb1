"""A client of the Chrome DevTools protocol for one page, through a desktop's own loopback.

Invariants:
    - Calls may overlap; each gets its own answer. A call that the browser rejects raises `DevToolsError`.
    - When the browser or the connection dies, every waiting and later call raises `DesktopError`.
    - What a browser says is bounded, for a page may have it say anything: a message, an answer over HTTP, and what it
      says unasked between two answers. A browser that says more has its connection closed. So nothing here holds an
      event loop up for longer than a message takes to parse, and a server uses it without a process between.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from dart_gym.core.errors import DesktopError, DesktopTimeoutError
from dart_gym.desktops.base.desktop import Desktop

_MAX_MESSAGE = 1 << 20  # a tenth of a second to parse, whatever its content
MAX_UNASKED = 32 << 20  # bytes of events that nobody waits for, between two answers
_MAX_LISTING = 1 << 20
LISTING_S = 15.0


class DevToolsError(DesktopError):
    """The browser answered a call with an error, or a script threw."""


class PageLoadError(DevToolsError):
    """The browser says that a page cannot be loaded: it is not there, or the network is not."""


class DevTools:
    """Connection to the first page of a browser. Make it with `connect`."""

    def __init__(self, socket: ClientConnection, timeout: float) -> None:
        self._socket, self._timeout = socket, timeout
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._events: dict[str, list[asyncio.Future[dict[str, Any]]]] = defaultdict(list)
        self._unasked = 0
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, desktop: Desktop, port: int = 1337, *, timeout: float = 30.0) -> DevTools:
        """Connect to the first page of the browser on a port inside.

        Raises:
            DesktopError: if no browser listens on the port.
        """
        return await cls.attach(str(await desktop.open_port(port)), port, timeout=timeout)

    @classmethod
    async def attach(cls, path: str, port: int, page_id: str = "", *, timeout: float = 30.0) -> DevTools:
        """Connect to a page, or the first one, of the browser behind a Unix socket. See `connect`."""
        try:
            async with asyncio.timeout(timeout):
                if not page_id:
                    page = next((target for target in await targets(path, port) if target["type"] == "page"), None)
                    if page is None:
                        raise DesktopError(f"the browser on port {port} has no page; next step: start a new desktop")
                    page_id = page["id"]
                uri = f"ws://127.0.0.1:{port}/devtools/page/{page_id}"
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
        if reply.get("exceptionDetails"):
            details = {"exception": {}, **_table(reply, "exceptionDetails")}
            text = _table(details, "exception").get("description") or details.get("text")
            raise DevToolsError(f"script failed: {text}")
        return _table(reply, "result").get("value")

    async def navigate(self, url: str) -> None:
        """Load a page and wait until it is loaded and drawn (before that, Chromium drops what the user does)."""
        await self.call("Page.enable")
        loaded = self.event("Page.loadEventFired")
        try:
            reply = await self.call("Page.navigate", url=url)
            if "errorText" in reply:
                raise PageLoadError(f"cannot load {url}: {reply['errorText']}")
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
        """End the connection; the browser keeps running."""
        await self._socket.close()
        await self._reader

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                self._dispatch(json.loads(message), len(message))
            problem = "the connection to the browser was closed"
        except ConnectionClosed as error:
            problem = f"the browser closed the connection: {error}"
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DesktopError) as error:
            problem = f"the browser said what no browser says, and was left: {error!r:.200}"
            await self._socket.close()
        futures = [*self._waiting.values(), *itertools.chain.from_iterable(self._events.values())]
        for future in futures:
            if not future.done():
                future.set_exception(DesktopError(problem))
                future.exception()  # a task that still awaits it gets it; without this, asyncio would warn about it

    def _dispatch(self, message: dict[str, Any], size: int) -> None:
        if "id" in message:
            _table(message, "error" if "error" in message else "result")
            futures, value = [self._waiting[message["id"]]] if message["id"] in self._waiting else [], message
        else:
            futures, value = self._events.pop(str(message["method"]), []), message.get("params", {})
        self._unasked = 0 if futures else self._unasked + size
        if self._unasked > MAX_UNASKED:
            raise DesktopError(f"more than {MAX_UNASKED} bytes that nobody asked for")
        for future in futures:
            if not future.done():
                future.set_result(value)


def _table(message: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a field of a message that must be an object.

    Raises:
        DesktopError: if it is not an object, which a browser would never send.
    """
    if not isinstance(found := message.get(name), dict):
        raise DesktopError(f"the browser said what no browser says: {name} is {found!r:.100}")
    return found


class Browser:
    """The tabs of a browser, by the HTTP side of DevTools: `path` is a Unix socket that leads to its port."""

    def __init__(self, path: Path, port: int) -> None:
        self._path, self._port = str(path), port

    async def pages(self) -> list[dict[str, Any]]:
        """All tabs (`id`, `url`, `title`), the newest first. Raises `DesktopError` when nobody answers."""
        try:
            return [target for target in await targets(self._path, self._port) if target["type"] == "page"]
        except httpx.HTTPError as error:
            raise DesktopError(f"no browser answers on port {self._port}: {error!r}") from error

    async def open(self, url: str, *, timeout: float) -> None:
        """Open a page in a new tab and wait until it is loaded. Raises `DevToolsError` when it cannot be."""
        page_id = _target(await self._ask("PUT", "/json/new?about:blank"), self._port)["id"]
        await self._ask("GET", f"/json/activate/{page_id}")  # a tab behind another one draws no frames
        page = await DevTools.attach(self._path, self._port, page_id, timeout=timeout)
        try:
            await page.navigate(url)
        finally:
            await page.close()

    async def close(self, page_id: str) -> None:
        """Close a tab."""
        await self._ask("GET", f"/json/close/{page_id}")

    async def _ask(self, method: str, path: str) -> Any:
        try:
            status, text = await _fetch(self._path, method, f"http://127.0.0.1:{self._port}{path}")
        except httpx.HTTPError as error:
            raise DesktopError(f"the browser on port {self._port} did not answer {path}: {error!r}") from error
        if status != 200:
            raise DevToolsError(f"{path}: {text.strip()[:1000] or status}")
        return _parsed(text)


def _client(path: str) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=path, verify=False)  # no TLS here: saves 60 ms of loading certificates
    return httpx.AsyncClient(transport=transport, trust_env=False, timeout=LISTING_S)


async def targets(path: str, port: int) -> list[dict[str, Any]]:
    """The browser's list of pages and workers (`GET /json`), through a Unix socket."""
    _, text = await _fetch(path, "GET", f"http://127.0.0.1:{port}/json")
    found = _parsed(text)
    return [_target(target, port) for target in (found if isinstance(found, list) else [None])]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _target(found: Any, port: int) -> dict[str, Any]:
    """A page or worker, as a browser tells of one. Raises `DesktopError`."""
    if isinstance(found, dict) and all(isinstance(found.get(name), str) for name in ("id", "type", "url")):
        if str(found["id"]).isalnum():
            return found
    raise DesktopError(f"what answers on port {port} is no browser")


async def _fetch(path: str, method: str, url: str) -> tuple[int, str]:
    """Status and text of one request; at most `_MAX_LISTING` bytes are read, for `LISTING_S`."""
    text = bytearray()
    try:
        async with _client(path) as client, asyncio.timeout(LISTING_S), client.stream(method, url) as response:
            async for chunk in response.aiter_raw():
                text += chunk
                if len(text) > _MAX_LISTING:
                    raise DesktopError(f"the browser answered with more than {_MAX_LISTING} bytes")
    except TimeoutError:
        raise DesktopTimeoutError(f"the browser did not end its answer within {LISTING_S:g} s") from None
    return response.status_code, text.decode(errors="replace")
