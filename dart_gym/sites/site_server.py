"""The web server of one desktop's sites, in its keeper: pages, the State API, and a proxy to sites that are programs.

Invariants:
    - It serves one desktop, whose socket it was given: no request can name another episode. A `sid` in an address or a
      path is replaced by the episode's own, which nobody can guess, before a program sees it.
    - Once `seal` was called, what a page may change is changed, and nothing else: the current states.
    - Of the host nothing is served but files below the folder of the site that is asked for; nothing is run.
    - Connections and bodies are bounded, so that the memory of a keeper is.
"""

import asyncio
import contextlib
import mimetypes
import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from yarl import URL

from dart_gym.core.errors import DesktopError, words_of
from dart_gym.sites.site_state import SiteState

MOST_CONNECTIONS = 64
MAX_BODY = 2 << 20
COMMON = Path(__file__).with_name("common").resolve()
_PROGRAM_S = 30.0
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-encoding", "content-length", "upgrade", "host"}
_FILES = re.compile(r"^/+files/+[^/]+", re.IGNORECASE)


@dataclass(slots=True)
class _Served:
    """One site for one episode; `port` is where its program listens on this machine, 0 without one."""

    folder: Path
    port: int
    state: SiteState = field(default_factory=SiteState)


class SiteServer:
    """Serves sites (`{"name", "host", "folder", "port"}`) to all clients of a listening socket."""

    def __init__(self, sites: Sequence[dict[str, Any]]) -> None:
        self._names = {site["name"]: _Served(Path(site["folder"]), site["port"]) for site in sites}
        self._hosts = {site["host"]: self._names[site["name"]] for site in sites}
        self._sid, self._sealed = secrets.token_hex(16), False
        self._stack = contextlib.AsyncExitStack()

    async def serve(self, listener: socket.socket) -> None:
        """Begin to serve; returns at once."""
        application = web.Application(client_max_size=MAX_BODY)
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        server, timeout = runner.server, aiohttp.ClientTimeout(_PROGRAM_S)
        assert server is not None  # it is set up
        connector = aiohttp.TCPConnector(force_close=True)  # a program may close an idle connection at any moment
        self._programs = await self._stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=timeout)
        )

        def protocol() -> asyncio.BaseProtocol:
            return server() if len(server.connections) < MOST_CONNECTIONS else _Refusal()

        self._stack.callback((await asyncio.get_running_loop().create_server(protocol, sock=listener)).close)
        for name, served in self._names.items():
            if served.port:
                self._stack.push_async_callback(self._forget, name)

    async def _forget(self, name: str) -> None:
        with contextlib.suppress(DesktopError):  # a program that has ended remembers nothing
            await self.set_state(name, None)

    async def close(self) -> None:
        """Have programs forget the episode, and stop serving."""
        await self._stack.aclose()

    async def set_state(self, name: str, state: Any) -> None:
        """Begin an episode of a site.

        Raises:
            DesktopError: if there is no such site, or its program does not answer.
        """
        served = self._served(name)
        served.state, self._sealed = SiteState(state, state), False
        if served.port:
            await self._ask(name, "POST", "/post", {"action": "reset"})
            if state is not None:
                await self._ask(name, "POST", "/post", {"action": "set", "state": state})

    async def state(self, name: str) -> Any:
        """`SiteState.go` of a site, or its program's own answer. Raises `DesktopError`, as above."""
        served = self._served(name)
        return await self._ask(name, "GET", "/go") if served.port else served.state.go()

    def seal(self) -> None:
        """From now on take from the desktop only what a page sends for its user."""
        self._sealed = True

    def _served(self, name: str) -> _Served:
        if name not in self._names:
            raise DesktopError(f"this desktop has no site {name!r}; it has {', '.join(self._names) or 'none'}")
        return self._names[name]

    async def _ask(self, name: str, method: str, path: str, body: Any = None) -> Any:
        try:
            url = self._inner(self._names[name].port, URL(path))
            async with self._programs.request(method, url, json=body) as response:
                response.raise_for_status()
                return orjson.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise DesktopError(f"the program of the site {name!r} does not answer {path}: {words_of(error)}") from error

    def _inner(self, port: int, url: URL) -> URL:
        """Where a program has what a desktop asks for: the episode's own `sid` in the place of any other."""
        path = _FILES.sub(f"/files/{self._sid}", url.path)
        query = [(key, value) for key, value in url.query.items() if key != "sid"]
        return URL.build(scheme="http", host="127.0.0.1", port=port, path=path).with_query([*query, ("sid", self._sid)])

    async def _answer(self, request: web.Request) -> web.Response:
        served = self._hosts.get(request.url.host or "")
        path = request.path.rstrip("/").lower()
        asked = None
        if served is None:
            return web.Response(status=404, text="there is no such site")
        body = await request.read()
        if path == "/post":
            try:
                asked = orjson.loads(body)
                orjson.dumps(asked)  # refuses what is nested too deep for those who read it
                action = asked.get("action", "set")
            except (ValueError, TypeError, AttributeError):
                return _json({"error": "the body must be an object in JSON"}, 400)
        if self._sealed and (path == "/go" or (asked is not None and action != "set_current")):
            return _json({"error": "the episode has begun"}, 403)
        if served.port:
            return await self._passed_on(served, request, body)
        if asked is not None:
            try:
                served.state.post(asked)
            except ValueError as error:
                return _json({"error": str(error)}, 400)
            return _json({"success": True})
        if path == "/go":
            return _json(served.state.go())
        if path == "/state":
            state = served.state.current
            return _json({"stored_state": state, "has_custom_state": state is not None, "sid": self._sid})
        if (found := page(served.folder, request.path)) is None:
            return web.Response(status=404, text="not found")
        kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
        return web.Response(body=found.read_bytes(), content_type=kind, headers={"Cache-Control": "no-cache"})

    async def _passed_on(self, served: _Served, request: web.Request, body: bytes) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = self._inner(served.port, request.url)
        try:
            async with self._programs.request(
                request.method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                kept = [(name, text) for name, text in response.headers.items() if name.lower() not in _HOP_BY_HOP]
                return web.Response(status=response.status, body=await response.read(), headers=kept)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return web.Response(status=502, text=f"the site's program does not answer: {words_of(error)}")


def page(folder: Path, path: str) -> Path | None:
    """The file of a path below a folder, `index.html` for one without an ending; None without such a file.

    What bundled sites have in common, `/site.js` and `/site.css`, is found in every site.
    """
    name = path.lstrip("/") if "." in path.rpartition("/")[2] else "index.html"
    for base in (folder.resolve(), COMMON):
        with contextlib.suppress(ValueError, OSError):  # a path that no file can have
            file = (base / name).resolve()
            if file.is_relative_to(base) and file.is_file() and file.name not in ("state.json", "site.json"):
                return file
    return None


def _json(value: Any, status: int = 200) -> web.Response:
    body, headers = orjson.dumps(value), {"Cache-Control": "no-store"}
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


class _Refusal(asyncio.Protocol):
    """Closes a connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
