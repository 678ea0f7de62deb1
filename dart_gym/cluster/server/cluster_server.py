"""The cluster's server: each websocket is a session, which holds one desktop from its first reset on.

Invariants:
    - A session executes one request at a time and keeps its last reply, so a request that is sent again after a
      reconnect executes nothing twice.
    - A dropped connection leaves its session alive for `grace_s`; a client that knows the session's token, and shows
      a bearer token of the same name, may resume it. A connection that is alive is not replaced, unless asked to.
    - A session that the server ends (idle, expired, revoked) is told why, now or when it comes back.
    - Bytes that are not the protocol end that connection with an error frame, and nothing else.
    - Over TCP a token is asked for, on loopback one that is made for this user (`local_tokens`), unless a person wants
      none. Browsers' pages (an Origin header, or a name that is not this machine's) never can connect.
    - `drain` lends no more desktops and lets episodes end; `stop` leaves no desktop, socket or task behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from importlib.metadata import version as installed_version
from typing import Any

import websockets
from websockets.asyncio.server import Server, ServerConnection
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response

from dart_gym.cluster.pool.boot_admission import Admission
from dart_gym.cluster.pool.desktop_pool import Pool
from dart_gym.cluster.server.access_tokens import ANYBODY, Headers, Principal, TokenBook, TokenFile
from dart_gym.cluster.server.client_protocols import adapt, protocols_by_path
from dart_gym.cluster.server.http_routes import HttpRoutes, is_upgrade
from dart_gym.cluster.server.listener import listen, load_certificate, tls_context
from dart_gym.cluster.server.live_view import LiveViews
from dart_gym.cluster.server.operations import ClientGoneError, Operations, describe
from dart_gym.cluster.server.server_metrics import Metrics
from dart_gym.cluster.server.server_settings import ServerSettings
from dart_gym.cluster.server.session_registry import Lifetimes, ServedSession, Sessions
from dart_gym.cluster.wire import frames, image_codecs
from dart_gym.cluster.wire.cluster_address import parse_address
from dart_gym.cluster.wire.frames import ErrorCode, Reply, Request, Welcome
from dart_gym.cluster.wire.local_tokens import LocalToken
from dart_gym.cluster.wire.shared_frames import SHARED, taken
from dart_gym.core.errors import ClusterError, ConfigurationError, ProtocolError
from dart_gym.core.operation_deadline import LONGEST_EXTENSION_S
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.utils.page_guard import refusal

log = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 10.0
FAREWELL_S = 2.0  # how long a client may take to read why it is sent away
OPERATIONS_S = 5.0  # how long `stop` waits for operations under way, unless `drain_s` is shorter
STOPPED = "the server stops: connect to another one, or again when it is back"

__all__ = ["ClusterServer", "ServerSettings"]


class ClusterServer:
    """Serves desktops, by `async with` or `start` and `stop`; `local`: they take memory of this machine."""

    def __init__(
        self,
        settings: ServerSettings,
        desktop_factory: Callable[[DesktopSpec], Desktop] = make_desktop,
        *,
        local: bool = True,
    ) -> None:
        self.settings = settings
        self._token_file = TokenFile(settings.tokens) if settings.tokens else None
        self._address = parse_address(settings.listen)
        given = settings.single_token
        unasked = self._token_file or given or settings.open or self._address.is_unix
        self._local_token = None if unasked else LocalToken()
        own = self._local_token.text if self._local_token else given
        self._tokens = self._token_file.book if self._token_file else TokenBook.of_one(own)
        self._tls = tls_context(settings.tls_cert, settings.tls_key) if settings.tls_cert and settings.tls_key else None
        self.pool = Pool(
            settings.desktops,
            self._make,
            settings.osworld_api,
            warm=settings.warm or 0,
            admission=Admission(settings.limits(local=local)),
            quota=lambda name: self._tokens.quota(name),
        )
        self._desktop_factory = desktop_factory
        self._handlers: set[asyncio.Task[Any]] = set()
        self._server: Server | None = None
        self._upkeep: asyncio.Task[None] | None = None
        self._counters: Counter[str] = Counter()
        self._started = time.monotonic()
        self._version = installed_version("dart-gui")
        self.metrics, self.live_views = Metrics(), LiveViews()
        self._operations = Operations(
            self.pool,
            settings.desktop_choices,
            self._counters,
            settings.osworld_urls,
            settings.suites,
            self.metrics,
            self.live_views,
            settings.provider == "xvfb",
        )
        lifetimes = Lifetimes(settings.grace_s, settings.idle_timeout_s, settings.lifetime_s)
        self.sessions = Sessions(lifetimes, self._operations.end, self._counters)
        self._http = HttpRoutes(self)
        self._protocols = protocols_by_path()

    def _make(self, spec: DesktopSpec) -> Desktop:
        self._counters["boots"] += 1
        return self._desktop_factory(spec)

    # --- life

    async def __aenter__(self) -> ClusterServer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where clients reach it (with the port that the system chose, if it was 0)."""
        if self._address.is_unix or self._server is None:
            return self.settings.listen
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        return f"{'wss' if self._tls else 'ws'}://{host}:{self._port}"

    @property
    def _port(self) -> int:
        assert self._server is not None  # it listens
        return int(next(iter(self._server.sockets)).getsockname()[1])

    @property
    def draining(self) -> bool:
        """Return whether it lends no more desktops, because it is about to stop."""
        return self._operations.closing.is_set()

    async def start(self) -> None:
        """Listen.

        Raises:
            AddressError: if the address is in use or not available.
        """
        options: dict[str, Any] = {
            "process_request": self._route,
            "origins": [None],
            "compression": None,
            "max_size": frames.MAX_REQUEST_BYTES,
            "ping_interval": self.settings.heartbeat_s,
            "ping_timeout": 3 * self.settings.heartbeat_s,
            "close_timeout": 2.0,
        }
        self._server = await listen(self._address, self._serve, self._tls, options)
        if self._local_token is not None:
            try:
                self._local_token.publish(self._port)
            except ConfigurationError:
                self._server.close()
                self._server = None
                raise
        if self.settings.isolation == "none":
            log.warning("--isolation none: programs of desktops see this machine's files, processes and network")
        if not self._address.is_local and self._tls is None:
            log.warning("tokens and screens cross the network in clear text: give --tls-cert, or use a tunnel")
        self._upkeep = asyncio.create_task(self._maintain(), name="upkeep")

    def reload(self) -> None:
        """Read tokens and certificate again and disconnect clients whose token is gone. Wrong files change nothing."""
        try:
            if self._tls and self.settings.tls_cert and self.settings.tls_key:
                load_certificate(self._tls, self.settings.tls_cert, self.settings.tls_key)
            if self._token_file:
                self._tokens = self._token_file.read()
        except ConfigurationError as error:
            log.error("the old tokens and certificate stay in use: %s", error)
            return
        log.info("read the tokens and the certificate again")
        revoked = ClusterError("the token was revoked: ask the cluster's administrator for another", ErrorCode.AUTH)
        for served in self.sessions:
            if served.connection is None or served.connection.request is None:
                continue  # a client that comes back must show a token
            principal = self.authenticate(served.connection.request.headers)
            if principal is None or principal.name != served.owner:
                self.sessions.expel(served, revoked)
            else:
                served.principal = principal
        self.pool.serve_waiters()  # quotas may have grown

    async def drain(self) -> None:
        """Lend no more desktops, and return when the episodes that run have ended, at the latest after `drain_s`."""
        self._operations.closing.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_s):
                await self.sessions.until_quiet()

    async def stop(self, patience_s: float = OPERATIONS_S) -> None:
        """End all sessions and desktops; operations under way get `patience_s`, or `drain_s` if shorter. Idempotent."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close(close_connections=False)
        if self._upkeep:
            self._upkeep.cancel()
        self._operations.closing.set()
        busy = [asyncio.ensure_future(served.lock.acquire()) for served in self.sessions if served.lock.locked()]
        if busy:
            await asyncio.wait(busy, timeout=min(patience_s, self.settings.drain_s))
            for waiter in busy:
                waiter.cancel()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await server.wait_closed()
        await self.sessions.clear()
        self.live_views.close()
        await self.pool.close()
        if self._local_token is not None:
            self._local_token.withdraw()
        if self._address.is_unix:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._address.path)

    async def _maintain(self) -> None:
        """End sessions whose time is over; stop desktops that nobody used for long; look for changed tokens."""
        idle_desktop_s = self.settings.idle_desktop_s
        period = max(0.02, min(1.0, self.sessions.lifetimes.shortest_s / 4, idle_desktop_s / 4))
        while True:
            await asyncio.sleep(period)  # a period, not a wait: every deadline is checked against the clock
            try:
                self.sessions.check()
                await self.pool.maintain(idle_desktop_s)
                if self._token_file and self._token_file.changed():
                    self.reload()
            except Exception:  # a defect in it must not leave every session without an end from now on
                log.exception("maintenance failed")
                self._counters["internal_errors"] += 1

    # --- connections

    def authenticate(self, headers: Headers) -> Principal | None:
        """Return who sent a request, or None if the sender may not use this server."""
        principal = self._tokens.authenticate(headers)
        self._counters["refused"] += principal is None
        return principal

    async def _route(self, connection: ServerConnection, request: HttpRequest) -> Response | None:
        """None lets a websocket begin; anything else is the answer."""
        if not is_upgrade(request.headers):
            return await self._http.answer(request)
        if reason := self.refuses(request.headers):
            return connection.respond(HTTPStatus.FORBIDDEN, f"{reason}\n")
        if self.authenticate(request.headers) is not None:
            return None
        return connection.respond(HTTPStatus.UNAUTHORIZED, "this cluster needs a bearer token\n")

    def refuses(self, headers: Headers) -> str:
        """Why a request is not meant for this server; "" where it is, by any name behind a proxy with a token."""
        unnamed = self._tokens.open or self._local_token is not None
        loopback = unnamed and not self._address.is_unix
        return refusal(headers.get_all("Origin"), headers.get_all("Host"), loopback=loopback)

    async def _serve(self, connection: ServerConnection) -> None:
        task = asyncio.current_task()
        assert task is not None  # a coroutine that websockets runs as a task
        self._handlers.add(task)
        connection = adapt(connection, self._protocols)
        served: ServedSession | None = None
        try:
            served = await self._greet(connection, task)
            await self._converse(connection, served)
        except ProtocolError as error:
            self._counters["protocol_errors"] += 1
            await _farewell(connection, ErrorCode.PROTOCOL, str(error))
        except ClusterError as error:
            await _farewell(connection, ErrorCode(error.code), str(error))
        except (websockets.ConnectionClosed, ClientGoneError):
            pass  # `finally` starts the grace period
        except asyncio.CancelledError:  # by `_expel`, or `stop`
            reason = served.reason if served is not None else None
            await _farewell(
                connection, ErrorCode(reason.code) if reason else ErrorCode.SHUTDOWN, str(reason or STOPPED)
            )
            raise
        finally:
            self._handlers.discard(task)
            if served is not None and served.connection is connection:
                self.sessions.detach(served)

    async def _greet(self, connection: ServerConnection, handler: asyncio.Task[Any]) -> ServedSession:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = frames.decode_hello(await connection.recv())
        except TimeoutError:
            raise ProtocolError(f"no hello within {HELLO_TIMEOUT_S:g} s") from None
        hello = dataclasses.replace(hello, codecs=taken(hello.codecs))
        if hello.protocol != frames.VERSION:
            raise ProtocolError(f"the server speaks version {frames.VERSION}, the client {hello.protocol}: update one")
        assert connection.request is not None  # the handshake is done
        principal = self.authenticate(connection.request.headers)
        if principal is None:
            raise ClusterError("the token was revoked", ErrorCode.AUTH)
        sessions = self.sessions
        served = await sessions.resume(hello, principal) if hello.resume else sessions.open(hello, principal)
        if served.codec == SHARED and SHARED not in hello.codecs:
            served.go_on_by_bytes(hello.codecs)
        sessions.attach(served, connection, handler)
        welcome = Welcome(
            served.token, served.codec, bool(hello.resume), self.settings.grace_s, limits=_welcome_limits(self.settings)
        )
        await connection.send(frames.encode_welcome(welcome))
        return served

    async def _converse(self, connection: ServerConnection, served: ServedSession) -> None:
        async for frame in connection:
            request = frames.decode_request(frame)
            if request.op == "close" and served.worker is not None:
                served.worker.cancel()  # of an earlier connection, busy with what nobody waits for any more
            async with served.lock:
                if served.connection is not connection:
                    return  # the client has another one, on which it asks again for what it still wants
                if self.sessions.lifetimes.is_expired(served, time.monotonic()):
                    self.sessions.check()
                if served.reason is not None:
                    raise served.reason
                served.worker = asyncio.current_task()
                try:
                    reply = await self._answer(connection, served, request)
                finally:
                    served.worker = None
                    self.sessions.progressed()
            served.last_used = time.monotonic()
            self.metrics.traffic["received"] += len(frame)
            self.metrics.traffic["sent"] += len(reply)
            with contextlib.suppress(websockets.ConnectionClosed):  # what came before the end is read: maybe a `close`
                await connection.send(frames.fragments(reply))
            if served.ended:
                self.sessions.forget(served)
                return

    async def _answer(self, connection: ServerConnection, served: ServedSession, request: Request) -> bytes:
        if request.id == served.last_id:
            self._counters["resent"] += 1
            return served.last_reply
        if request.id < served.last_id:
            raise ProtocolError(f"request {request.id} comes after request {served.last_id}")
        self._counters["requests"] += 1
        if request.op == "status":
            reply = Reply(request.id, self.status(served.principal))
        else:
            reply = await self._operations.execute(request, served, connection.wait_closed)
        shared = served.sender.bytes if served.sender else 0
        encoded = await _encode(reply, served)
        self.metrics.traffic["shared"] += served.sender.bytes - shared if served.sender else 0
        served.last_id, served.last_reply = request.id, encoded
        return encoded

    def status(self, principal: Principal = ANYBODY) -> dict[str, Any]:
        """Return what every desktop does, and how much was done, as far as somebody may know: plain values."""
        return {
            **describe(self.pool, principal),
            "counters": dict(self._counters),
            "draining": self.draining,
            "sessions": len(self.sessions),
            "uptime_s": time.monotonic() - self._started,
            "version": self._version,
        }


async def _encode(reply: Reply, served: ServedSession) -> bytes:
    """Bytes of a reply, made in a thread where it takes long."""
    try:
        if reply.image is not None and image_codecs.is_slow(reply.image, served.codec):
            return await asyncio.to_thread(frames.encode_reply, reply, served.codec)
        return frames.encode_reply(reply, served.codec, served.sender)
    except ProtocolError as error:
        log.exception("reply %d cannot be sent", reply.id)
        return frames.encode_reply(Reply(reply.id, code=ErrorCode.INTERNAL, message=f"the reply {error}"))


def _welcome_limits(settings: ServerSettings) -> dict[str, float]:
    limits: dict[str, float] = {
        "request_bytes": frames.MAX_REQUEST_BYTES,
        "idle_s": settings.idle_timeout_s,
        "extension_s": LONGEST_EXTENSION_S,
    }
    return limits if settings.lifetime_s is None else limits | {"lifetime_s": settings.lifetime_s}


async def _farewell(connection: ServerConnection, code: ErrorCode, message: str) -> None:
    """Say why, and close. Clients that have disconnected, do not read or are in the middle of a reply are cut off."""
    try:
        async with asyncio.timeout(FAREWELL_S):
            await connection.send(frames.encode_reply(Reply(-1, code=code, message=message)))
            await connection.close(frames.CLOSE_CODES.get(code, 1011), code)
    except (websockets.WebSocketException, TimeoutError):
        connection.transport.abort()
