"""`dart-gym watch`: the address of a cluster's page, behind a small proxy on this machine where a browser needs one.

A browser cannot open a Unix socket, and should not be given the cluster's token. So the proxy passes three read-only
routes on, adds the token, and asks for a key of its own, which is made for this run and stands in the fragment of the
address that is printed: fragments are never sent, so no log has it.

Invariants:
    - The proxy listens on loopback only, and passes GET and HEAD of the page's routes, nothing else.
    - Neither key nor token is ever part of a URL that is requested.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler

from dart_gym.cluster.server.http_routes import HEADERS
from dart_gym.cluster.wire.cluster_address import Address, parse_address
from dart_gym.cluster.wire.frames import ErrorCode
from dart_gym.cluster.wire.local_tokens import find_local_token
from dart_gym.core.errors import AddressError, ClusterError
from dart_gym.utils.page_guard import refusal

TIMEOUT_S = 30.0
_PASSED = ("Content-Type", "Content-Security-Policy", "ETag", "Cache-Control", *HEADERS)


class WatchProxy:
    """The page of a cluster on a loopback port, 0 for any. Use as an async context manager."""

    def __init__(self, url: str, token: str | None = None, port: int = 0) -> None:
        self._cluster, self._port = parse_address(url), port
        self._token = token or find_local_token(self._cluster)
        self._key = secrets.token_urlsafe(24)
        self._client: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    @property
    def page_url(self) -> str:
        """What a browser opens; it holds the key."""
        if self._runner is None:
            raise ClusterError("the proxy is not started", ErrorCode.STATE)
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/watch#token={self._key}"

    async def __aenter__(self) -> WatchProxy:
        connector = aiohttp.UnixConnector(self._cluster.path) if self._cluster.is_unix else aiohttp.TCPConnector()
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        self._client = aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(TIMEOUT_S)
        )
        try:
            await self._check()
            application = web.Application(middlewares=[_guard])
            application.router.add_get("/watch", self._page)
            application.router.add_get("/watch/state", self._guarded)
            application.router.add_get("/watch/frame/{slot}", self._guarded)
            self._runner = web.AppRunner(application, access_log=None)
            await self._runner.setup()
            try:
                await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
            except OSError as error:
                raise AddressError(f"cannot listen on port {self._port}: {error}; choose another --port") from error
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _check(self) -> None:
        """Ask once, so that a wrong address or token is said here and not in the browser."""
        status = (await self._fetch("/watch/state", {}))[0]
        if status == 401:
            given = "the token is wrong" if self._token else "it needs a token: name its variable with --token-env"
            raise ClusterError(f"{self._cluster.url} refused: {given}", ErrorCode.AUTH)
        if status != 200:
            raise ClusterError(f"{self._cluster.url} has no page to watch (HTTP status {status})", ErrorCode.PROTOCOL)

    async def _fetch(self, path_and_query: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        assert self._client is not None  # made on entry
        try:
            async with self._client.get(f"{http_url(self._cluster)}{path_and_query}", headers=headers) as answer:
                passed = {name: answer.headers[name] for name in _PASSED if name in answer.headers}
                return answer.status, passed, await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ClusterError(
                f"cannot reach the cluster at {self._cluster.url} ({type(error).__name__}: {error}): "
                "is `dart-gym serve` running there?",
                ErrorCode.UNREACHABLE,
            ) from error

    async def _page(self, request: web.Request) -> web.Response:
        headers = {"If-None-Match": value} if (value := request.headers.get("If-None-Match")) else {}
        try:
            status, passed, body = await self._fetch(request.rel_url.raw_path_qs, headers)
        except ClusterError as error:
            return web.Response(status=502, text=f"{error}\n", headers=HEADERS)
        return web.Response(status=status, body=body, headers=passed)

    async def _guarded(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self._key}".encode()):
            return web.Response(status=401, text="open the address that `dart-gym watch` printed\n", headers=HEADERS)
        return await self._page(request)


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    headers = request.headers
    if reason := refusal(headers.getall("Origin", []), headers.getall("Host", []), loopback=True):
        return web.Response(status=403, text=f"{reason}\n", headers=HEADERS)
    return await handler(request)


def http_url(address: Address) -> str:
    """Where a cluster answers plain HTTP. Pure."""
    if address.is_unix:
        return "http://localhost"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{'https' if address.tls else 'http'}://{host}:{address.port}"


def needs_proxy(address: Address, token: str | None) -> bool:
    """Whether a browser cannot simply open the cluster's own page."""
    return address.is_unix or token is not None or find_local_token(address) is not None


async def serve_page(
    url: str, token: str | None, port: int, announce: Callable[[str], None], ending: asyncio.Event
) -> None:
    """Say where the page is, by the proxy until `ending` where one is needed. Raises `ClusterError`: nobody answers."""
    async with WatchProxy(url, token, port) as proxy:
        if not needs_proxy(parse_address(url), token):
            announce(f"{http_url(parse_address(url))}/watch")
            return
        announce(proxy.page_url)
        await ending.wait()
