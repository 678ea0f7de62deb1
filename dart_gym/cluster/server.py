"""The cluster's server: each websocket is a session, which holds a lease on one desktop from its first reset on.

Invariants:
    - A session executes one request at a time and keeps its last reply, so a request that is sent again after a
      reconnect executes nothing twice.
    - A dropped connection leaves its session alive for `grace_s`; whoever knows its token may go on with it.
    - Bytes that are not the protocol end that connection with an error frame, and nothing else.
    - Without a token only this machine can connect, and browsers' pages (an Origin header) never can.
    - `stop` leaves no desktop, socket or task behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version as installed_version
from typing import Any

import websockets
from websockets.asyncio.server import Server, ServerConnection, serve, unix_serve
from websockets.datastructures import Headers
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response

from dart_gym.cluster import protocol
from dart_gym.cluster.address import Address, parse_address
from dart_gym.cluster.gallery import Gallery
from dart_gym.cluster.http import HttpRoutes, is_upgrade, names_this_machine
from dart_gym.cluster.metrics import Metrics
from dart_gym.cluster.operations import ClientGoneError, Lease, Operations, describe
from dart_gym.cluster.pool import Pool
from dart_gym.cluster.protocol import ErrorCode, Hello, Reply, Request, Welcome
from dart_gym.desktops import make_desktop
from dart_gym.desktops.base import Desktop, DesktopSpec
from dart_gym.desktops.face_address import FacePolicy
from dart_gym.errors import AddressError, ClusterError, ConfigurationError, ProtocolError

log = logging.getLogger(__name__)

BIG_IMAGE_BYTES = 500_000  # larger ones are compressed in a thread
HELLO_TIMEOUT_S = 10.0
CLOSE_PROTOCOL, CLOSE_IDLE = 4400, 4408


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server behaves.

    Attributes:
        listen: URL to listen on.
        desktops: how many desktops may run at once.
        token: bearer token that clients must show; None only where nobody else can connect.
        grace_s: how long a session outlives its connection.
        idle_timeout_s: a lease ends after so long without a request.
        idle_desktop_s: a free desktop is stopped after so long.
        heartbeat_s: interval of websocket pings.
        drain_s: how long `stop` waits for operations under way.
        sandbox: replaces the tasks' choice ("bwrap" or "none") if given.
        osworld_urls: machines with OSWorld's server that clients may use; ("*",) for any.
        faces: gives each desktop OSWorld's HTTP face, on this machine; None for none.
    """

    listen: str
    desktops: int = 4
    token: str | None = None
    grace_s: float = 30.0
    idle_timeout_s: float = 900.0
    idle_desktop_s: float = 300.0
    heartbeat_s: float = 20.0
    drain_s: float = 5.0
    sandbox: str | None = None
    osworld_urls: tuple[str, ...] = ()
    faces: FacePolicy | None = None

    def __post_init__(self) -> None:
        if self.desktops < 1:
            raise ConfigurationError(f"desktops must be at least 1, got {self.desktops}")
        if self.sandbox not in (None, "bwrap", "none"):
            raise ConfigurationError(f"sandbox must be 'bwrap' or 'none', got {self.sandbox!r}")
        if not self.token and not parse_address(self.listen).is_local:
            raise ConfigurationError(
                f"{self.listen} can be reached from other machines, which needs a token: put a long random one into "
                "an environment variable and name it with --token-env"
            )


@dataclass(slots=True, eq=False)
class _Connected(Lease):
    """A lease with the connection that it has now, if any."""

    connection: ServerConnection | None = None


class ClusterServer:
    """Serves desktops. Use as an async context manager, or `start` and `stop`.

    Args:
        settings: see `ServerSettings`.
        desktop_factory: makes desktops that are not started yet.
    """

    def __init__(
        self, settings: ServerSettings, desktop_factory: Callable[[DesktopSpec], Desktop] = make_desktop
    ) -> None:
        self.settings = settings
        self.pool = Pool(settings.desktops, self._make, settings.faces)
        self._desktop_factory = desktop_factory
        self._address = parse_address(settings.listen)
        self._leases: dict[str, _Connected] = {}
        self._handlers: set[asyncio.Task[Any]] = set()
        self._server: Server | None = None
        self._janitor: asyncio.Task[None] | None = None
        self._counters: Counter[str] = Counter()
        self._started = time.monotonic()
        self._version = installed_version("dart-gui")
        self.metrics, self.gallery = Metrics(), Gallery()
        self._operations = Operations(
            self.pool, settings.sandbox, self._counters, settings.osworld_urls, self.metrics, self.gallery
        )
        self._http = HttpRoutes(self)

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
        return f"ws://{self._address.host}:{next(iter(self._server.sockets)).getsockname()[1]}"

    async def start(self) -> None:
        """Listen.

        Raises:
            AddressError: the address is in use or cannot be had.
        """
        options: dict[str, Any] = {
            "process_request": self._route,
            "origins": [None],
            "compression": None,
            "max_size": protocol.MAX_REQUEST_BYTES,
            "ping_interval": self.settings.heartbeat_s,
            "ping_timeout": 3 * self.settings.heartbeat_s,
            "close_timeout": 2.0,
        }
        try:
            if self._address.is_unix:
                _remove_stale_socket(self._address)
                previous = os.umask(0o177)  # the socket belongs to this user alone from its first moment on
                try:
                    self._server = await unix_serve(self._serve, self._address.path, **options)
                finally:
                    os.umask(previous)
            else:
                self._server = await serve(self._serve, self._address.host, self._address.port, **options)
        except OSError as error:
            raise AddressError(_explain_bind(self._address, error)) from error
        self._janitor = asyncio.create_task(self._keep_house(), name="janitor")

    async def stop(self) -> None:
        """Let operations under way finish for `drain_s`, then end all sessions and stop all desktops. Idempotent."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close(close_connections=False)
        if self._janitor:
            self._janitor.cancel()
        busy = [asyncio.ensure_future(lease.lock.acquire()) for lease in self._leases.values() if lease.lock.locked()]
        if busy:
            await asyncio.wait(busy, timeout=self.settings.drain_s)
            for waiter in busy:
                waiter.cancel()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await server.wait_closed()
        self._leases.clear()
        self.gallery.close()
        await self.pool.close()
        if self._address.is_unix:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._address.path)

    async def _keep_house(self) -> None:
        """End leases whose grace period or idle time is over; stop desktops that nobody used for long."""
        settings = self.settings
        period = max(0.02, min(1.0, settings.grace_s / 4, settings.idle_timeout_s / 4, settings.idle_desktop_s / 4))
        while True:
            await asyncio.sleep(period)  # a period, not a wait: every deadline is checked against the clock
            now = time.monotonic()
            for lease in list(self._leases.values()):
                if lease.lock.locked():
                    continue
                if lease.connection is None and now - lease.last_used > settings.grace_s:
                    self._counters["sessions_lost"] += 1
                    self._end(lease)
                elif lease.slot is not None and now - lease.last_used > settings.idle_timeout_s:
                    self._counters["leases_idle"] += 1
                    await self._evict(lease)
            self.pool.stop_idle(settings.idle_desktop_s)

    async def _evict(self, lease: _Connected) -> None:
        connection = lease.connection
        self._end(lease)
        if connection is not None:
            message = f"no request for {self.settings.idle_timeout_s:g} s: the lease has ended; reset starts anew"
            await _farewell(connection, ErrorCode.IDLE, message, CLOSE_IDLE)

    def _end(self, lease: _Connected) -> None:
        self._leases.pop(lease.token, None)
        self._operations.end(lease)

    # --- connections

    async def _route(self, connection: ServerConnection, request: HttpRequest) -> Response | None:
        """None lets a websocket begin; anything else is the answer."""
        if not is_upgrade(request.headers):
            return await self._http.answer(request)
        if self.authorized(request.headers):
            return None
        return connection.respond(HTTPStatus.UNAUTHORIZED, "this cluster needs a bearer token\n")

    def authorized(self, headers: Headers) -> bool:
        """Whether a request shows the token, if one is needed."""
        if self.settings.token is None:
            return True
        expected = f"Bearer {self.settings.token}".encode()
        given = headers.get_all("Authorization")
        if len(given) == 1 and hmac.compare_digest(given[0].encode(), expected):
            return True
        self._counters["refused"] += 1
        return False

    def trusts_host(self, headers: Headers) -> bool:
        """Whether a request names this server as its own clients do; where a token is needed, that is enough."""
        if self.settings.token is not None or self._address.is_unix:
            return True
        return names_this_machine(headers.get("Host", ""))

    @property
    def draining(self) -> bool:
        """Whether it takes no new sessions."""
        return self._server is None

    async def _serve(self, connection: ServerConnection) -> None:
        task = asyncio.current_task()
        assert task is not None  # a coroutine that websockets runs as a task
        self._handlers.add(task)
        lease: _Connected | None = None
        try:
            lease = await self._greet(connection)
            await self._converse(connection, lease)
        except ProtocolError as error:
            self._counters["protocol_errors"] += 1
            await _farewell(connection, ErrorCode.PROTOCOL, str(error), CLOSE_PROTOCOL)
        except ClusterError as error:
            await _farewell(connection, ErrorCode(error.code), str(error), CLOSE_PROTOCOL)
        except (websockets.ConnectionClosed, ClientGoneError):
            pass  # `finally` starts the grace period
        except asyncio.CancelledError:  # `stop`
            await _farewell(connection, ErrorCode.SHUTDOWN, "the server stops", 1001)
            raise
        finally:
            self._handlers.discard(task)
            if lease is not None and lease.connection is connection:
                self._detach(lease)

    def _detach(self, lease: _Connected) -> None:
        lease.connection, lease.last_used = None, time.monotonic()
        if lease.slot is None:  # nothing worth coming back to
            self._end(lease)

    async def _greet(self, connection: ServerConnection) -> _Connected:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = protocol.decode_hello(await connection.recv())
        except TimeoutError:
            raise ProtocolError(f"no hello within {HELLO_TIMEOUT_S:g} s") from None
        if hello.version != protocol.VERSION:
            raise ProtocolError(f"the server speaks version {protocol.VERSION}, the client {hello.version}: update one")
        lease = self._resume(hello) if hello.resume else self._open(hello)
        replaced, lease.connection, lease.last_used = lease.connection, connection, time.monotonic()
        if replaced is not None:  # a half-open connection that the client has given up
            replaced.transport.abort()
        welcome = Welcome(lease.token, lease.codec, bool(hello.resume), self.settings.grace_s)
        await connection.send(protocol.encode_welcome(welcome))
        return lease

    def _open(self, hello: Hello) -> _Connected:
        codec = next((codec for codec in hello.codecs if codec in protocol.CODECS), None)
        if codec is None:
            raise ProtocolError(f"no common image codec: the server has {', '.join(protocol.CODECS)}")
        lease = _Connected(secrets.token_urlsafe(18), codec)
        self._leases[lease.token] = lease
        self._counters["sessions"] += 1
        return lease

    def _resume(self, hello: Hello) -> _Connected:
        lease = self._leases.get(hello.resume)
        if lease is None:
            raise ClusterError("the session is gone: its grace period is over", ErrorCode.SESSION_LOST)
        self._counters["resumed"] += 1
        return lease

    async def _converse(self, connection: ServerConnection, lease: _Connected) -> None:
        async for frame in connection:
            request = protocol.decode_request(frame)
            if request.op == "close" and lease.worker is not None:
                lease.worker.cancel()  # of an earlier connection, busy with what nobody waits for any more
            async with lease.lock:
                lease.worker = asyncio.current_task()
                try:
                    reply = await self._answer(connection, lease, request)
                finally:
                    lease.worker = None
            lease.last_used = time.monotonic()
            self.metrics.traffic["received"] += len(frame)
            self.metrics.traffic["sent"] += len(reply)
            await connection.send(reply)
            if lease.ended:
                self._leases.pop(lease.token, None)
                return

    async def _answer(self, connection: ServerConnection, lease: _Connected, request: Request) -> bytes:
        if request.id == lease.last_id:
            self._counters["resent"] += 1
            return lease.last_reply
        if request.id < lease.last_id:
            raise ProtocolError(f"request {request.id} comes after request {lease.last_id}")
        self._counters["requests"] += 1
        if request.op == "status":
            reply = Reply(request.id, self.status())
        else:
            reply = await self._operations.execute(request, lease, connection.wait_closed)
        if lease.codec != "raw" and reply.image is not None and reply.image.nbytes > BIG_IMAGE_BYTES:
            encoded = await asyncio.to_thread(protocol.encode_reply, reply, lease.codec)
        else:
            encoded = protocol.encode_reply(reply, lease.codec)
        lease.last_id, lease.last_reply = request.id, encoded
        return encoded

    def status(self) -> dict[str, Any]:
        """What every desktop does, and how much was done: plain values."""
        return {
            **describe(self.pool),
            "counters": dict(self._counters),
            "draining": self.draining,
            "sessions": len(self._leases),
            "uptime_s": time.monotonic() - self._started,
            "version": self._version,
        }


async def _farewell(connection: ServerConnection, code: ErrorCode, message: str, close_code: int) -> None:
    """Say why, and close. The other side may be gone already: nobody is left to tell then."""
    with contextlib.suppress(websockets.ConnectionClosed):
        await connection.send(protocol.encode_reply(Reply(-1, code=code, message=message)))
    await connection.close(close_code, code)


def _remove_stale_socket(address: Address) -> None:
    """Remove a socket that a killed server left behind; refuse one on which somebody answers."""
    if not os.path.exists(address.path):
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            os.unlink(address.path)
            return
    raise OSError(errno.EADDRINUSE, "another server answers there")


def _explain_bind(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        if address.is_unix:
            return f"{address.path} is in use by another server: stop it, or choose another --listen"
        return (
            f"port {address.port} on {address.host} is in use: see who with `ss -ltnp sport = :{address.port}`, "
            "and stop it or choose another --listen"
        )
    return f"cannot listen on {address.url}: {error}"
