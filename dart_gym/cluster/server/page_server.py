"""Serves the page on a loopback port of this machine, with what it asks for: a cluster, recorded episodes, a person.

A browser cannot open a Unix socket or a directory, and should not be given a cluster's token. So what it asks for is
guarded by a key of its own, which is made for this run and stands in the fragment of the address that is printed:
fragments are never sent, so no log has it.

Invariants:
    - It listens on loopback only, and answers no page of the web, nor one with a name of its own for it (`page_guard`).
    - Everything but the page itself needs the key, which is never part of a URL that is requested.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import signal
import sys
import webbrowser
from collections.abc import Iterable

from aiohttp import web
from aiohttp.typedefs import Handler

from dart_gym.cluster.server.watch_page import HEADERS, page
from dart_gym.cluster.wire.frames import ErrorCode
from dart_gym.core.errors import AddressError, ClusterError, DartGymError
from dart_gym.utils.page_guard import refusal


class PageServer:
    """The page with some views and their routes. Use as an async context manager."""

    def __init__(
        self, views: Iterable[str], routes: Iterable[web.RouteDef], port: int = 0, path: str = "/watch"
    ) -> None:
        """`path` is the page's, `routes` are what it asks for."""
        self._views = [*views]
        self._routes = [*routes]
        self._port = port
        self._path = path
        self._key = secrets.token_urlsafe(24)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Return what a browser opens; it holds the key."""
        if self._runner is None:
            raise ClusterError("the page is not served yet", ErrorCode.STATE)
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}{self._path}#token={self._key}"

    async def __aenter__(self) -> PageServer:
        """Listen.

        Raises:
            AddressError: if the port is taken.
        """
        application = web.Application(middlewares=[self._guard])  # bodies of at most 1 MiB
        application.add_routes([web.get(self._path, self._page), *self._routes])
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        except OSError as error:
            await self.__aexit__()
            raise AddressError(f"cannot listen on port {self._port}: {error}; choose another --port") from error
        return self

    async def __aexit__(self, *exc: object) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        headers = request.headers
        origins, hosts = headers.getall("Origin", []), headers.getall("Host", [])
        if reason := refusal(origins, hosts, loopback=True, own_page=True):
            return plain(403, reason)
        given = headers.get("Authorization", "").encode()
        asks_for_page = request.match_info.handler == self._page
        if not asks_for_page and not hmac.compare_digest(given, f"Bearer {self._key}".encode()):
            return plain(401, "open the address that the command printed")
        try:
            return await handler(request)
        except DartGymError as error:
            return plain(502 if isinstance(error, ClusterError) else 400, str(error))

    async def _page(self, request: web.Request) -> web.Response:
        html, policy = page(*self._views)
        headers = {**HEADERS, "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}
        return web.Response(body=html, headers=headers)


def plain(status: int, text: str) -> web.Response:
    """A line of text as a response."""
    return web.Response(status=status, text=text + "\n", headers=HEADERS)


async def serve_page(server: PageServer, browser: bool) -> None:
    """Print where the page is, open it in this machine's `browser` on request, and wait for SIGTERM or Ctrl-C."""
    ending = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, ending.set)
    print(server.url, flush=True)
    if browser and not webbrowser.open(server.url):
        print("no browser was found: open the address yourself", file=sys.stderr)
    await ending.wait()
