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
import dataclasses
import errno
import hmac
import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import websockets
from websockets.asyncio.server import Server, ServerConnection, serve, unix_serve
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response

from dart_gym.actions import action_from_dict, action_to_dict
from dart_gym.cluster import protocol
from dart_gym.cluster.address import Address, parse_address
from dart_gym.cluster.pool import Pool, Slot
from dart_gym.cluster.protocol import ErrorCode, Hello, Reply, Request, Welcome
from dart_gym.desktops import make_desktop
from dart_gym.desktops.base import Desktop, DesktopSpec
from dart_gym.errors import (
    ClusterError,
    ConfigurationError,
    DartGymError,
    EpisodeStateError,
    ProtocolError,
    UnknownTaskError,
)
from dart_gym.outcomes import EvaluationStatus, StepResult, TerminalState
from dart_gym.session import Session, resolve_task
from dart_gym.tasks.task import Task

log = logging.getLogger(__name__)

BIG_IMAGE_BYTES = 500_000  # larger ones are compressed in a thread
CLOSE_PROTOCOL, CLOSE_IDLE, CLOSE_REPLACED = 4400, 4408, 4409


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
class _Lease:
    """A session as the server sees it, over all its connections."""

    token: str
    codec: str
    client: str
    connection: ServerConnection | None = None
    slot: Slot | None = None
    session: Session | None = None
    last_id: int = 0
    last_reply: bytes = b""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    last_used: float = field(default_factory=time.monotonic)
    worker: asyncio.Task[Any] | None = None
    closed: bool = False


class _ConnectionLostError(Exception):
    """The client went away while it waited for a desktop: nothing was executed."""


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
        self.pool = Pool(settings.desktops, desktop_factory)
        self._address = parse_address(settings.listen)
        self._leases: dict[str, _Lease] = {}
        self._handlers: set[asyncio.Task[Any]] = set()
        self._server: Server | None = None
        self._janitor: asyncio.Task[None] | None = None
        self._counters: Counter[str] = Counter()
        self._started = time.monotonic()
        self._operations: dict[str, _Operation] = {
            "lease": self._do_lease,
            "reset": self._do_reset,
            "step": self._do_step,
            "finish": self._do_finish,
            "oracle": self._do_oracle,
        }

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
            ConfigurationError: the address is in use or cannot be had.
        """
        options: dict[str, Any] = {
            "process_request": self._authorize,
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
            raise ConfigurationError(_explain_bind(self._address, error)) from error
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

    async def _evict(self, lease: _Lease) -> None:
        connection = lease.connection
        self._end(lease)
        if connection is not None:
            message = f"no request for {self.settings.idle_timeout_s:g} s: the lease has ended; reset starts anew"
            await _farewell(connection, ErrorCode.IDLE, message, CLOSE_IDLE)

    def _end(self, lease: _Lease) -> None:
        lease.closed = True
        self._leases.pop(lease.token, None)
        if lease.slot is not None:
            slot, lease.slot, lease.session = lease.slot, None, None
            self.pool.release(slot)

    # --- connections

    def _authorize(self, connection: ServerConnection, request: HttpRequest) -> Response | None:
        if self.settings.token is None:
            return None
        expected = f"Bearer {self.settings.token}".encode()
        given = request.headers.get_all("Authorization")
        if len(given) == 1 and hmac.compare_digest(given[0].encode(), expected):
            return None
        self._counters["refused"] += 1
        return connection.respond(HTTPStatus.UNAUTHORIZED, "this cluster needs a bearer token\n")

    async def _serve(self, connection: ServerConnection) -> None:
        task = asyncio.current_task()
        assert task is not None  # a coroutine that websockets runs as a task
        self._handlers.add(task)
        lease: _Lease | None = None
        try:
            lease = await self._greet(connection)
            await self._converse(connection, lease)
        except ProtocolError as error:
            self._counters["protocol_errors"] += 1
            await _farewell(connection, ErrorCode.PROTOCOL, str(error), CLOSE_PROTOCOL)
        except ClusterError as error:
            await _farewell(connection, ErrorCode(error.code), str(error), CLOSE_PROTOCOL)
        except (websockets.ConnectionClosed, _ConnectionLostError):
            pass  # `finally` starts the grace period
        except asyncio.CancelledError:  # `stop`
            await _farewell(connection, ErrorCode.SHUTDOWN, "the server stops", 1001)
            raise
        finally:
            self._handlers.discard(task)
            if lease is not None and lease.connection is connection:
                self._detach(lease)

    def _detach(self, lease: _Lease) -> None:
        lease.connection, lease.last_used = None, time.monotonic()
        if lease.slot is None:  # nothing worth coming back to
            self._end(lease)

    async def _greet(self, connection: ServerConnection) -> _Lease:
        async with asyncio.timeout(10.0):
            try:
                hello = protocol.decode_hello(await connection.recv())
            except TimeoutError:
                raise ProtocolError("no hello within 10 s") from None
        if hello.version != protocol.VERSION:
            raise ProtocolError(f"the server speaks version {protocol.VERSION}, the client {hello.version}: update one")
        lease = self._resume(hello) if hello.resume else self._open(hello)
        replaced, lease.connection, lease.last_used = lease.connection, connection, time.monotonic()
        if replaced is not None:  # a half-open connection that the client has given up
            replaced.transport.abort()
        welcome = Welcome(lease.token, lease.codec, bool(hello.resume), self.settings.grace_s)
        await connection.send(protocol.encode_welcome(welcome))
        return lease

    def _open(self, hello: Hello) -> _Lease:
        codec = next((codec for codec in hello.codecs if codec in protocol.CODECS), None)
        if codec is None:
            raise ProtocolError(f"no common image codec: the server has {', '.join(protocol.CODECS)}")
        lease = _Lease(secrets.token_urlsafe(18), codec, hello.client)
        self._leases[lease.token] = lease
        self._counters["sessions"] += 1
        return lease

    def _resume(self, hello: Hello) -> _Lease:
        lease = self._leases.get(hello.resume)
        if lease is None:
            raise ClusterError("the session is gone: its grace period is over", ErrorCode.SESSION_LOST)
        self._counters["resumed"] += 1
        return lease

    async def _converse(self, connection: ServerConnection, lease: _Lease) -> None:
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
            await connection.send(reply)
            if lease.closed:
                return

    async def _answer(self, connection: ServerConnection, lease: _Lease, request: Request) -> bytes:
        if request.id == lease.last_id:
            self._counters["resent"] += 1
            return lease.last_reply
        if request.id < lease.last_id:
            raise ProtocolError(f"request {request.id} comes after request {lease.last_id}")
        self._counters["requests"] += 1
        reply = await self._execute(connection, lease, request)
        if lease.codec != "raw" and reply.image is not None and reply.image.nbytes > BIG_IMAGE_BYTES:
            encoded = await asyncio.to_thread(protocol.encode_reply, reply, lease.codec)
        else:
            encoded = protocol.encode_reply(reply, lease.codec)
        lease.last_id, lease.last_reply = request.id, encoded
        return encoded

    async def _execute(self, connection: ServerConnection, lease: _Lease, request: Request) -> Reply:
        if request.op == "status":
            return Reply(request.id, self.status())
        if request.op == "close":
            self._end(lease)
            return Reply(request.id)
        try:
            return await self._operations[request.op](connection, lease, request)
        except ProtocolError:
            raise
        except (DartGymError, TimeoutError) as error:
            return Reply(request.id, code=protocol.code_of(error), message=str(error) or "deadline passed")
        except (websockets.ConnectionClosed, _ConnectionLostError, asyncio.CancelledError):
            raise
        except Exception as error:
            # The boundary of the process: a defect of one task must not end the other sessions.
            log.exception("%s of %s failed", request.op, lease.slot.task if lease.slot else "a new session")
            self._counters["internal_errors"] += 1
            return Reply(request.id, code=ErrorCode.INTERNAL, message=f"{type(error).__name__}: {error}")

    # --- operations

    async def _lend(
        self, connection: ServerConnection, lease: _Lease, spec: DesktopSpec | None, timeout: float
    ) -> tuple[Session, Slot, float]:
        """The session and slot of a lease, waiting for a seat if it has none; and the seconds waited."""
        if lease.session is not None and lease.slot is not None:
            return lease.session, lease.slot, 0.0
        started = time.monotonic()
        slot = await self._wait_for_slot(connection, spec, timeout)
        lease.slot, lease.session = slot, Session(slot.seat)
        waited = time.monotonic() - started
        self._counters["queue_ms"] += round(waited * 1000)
        return lease.session, slot, waited

    async def _wait_for_slot(self, connection: ServerConnection, spec: DesktopSpec | None, timeout: float) -> Slot:
        acquiring = asyncio.ensure_future(self.pool.acquire(spec))
        gone = asyncio.ensure_future(connection.wait_closed())
        try:
            done, _ = await asyncio.wait({acquiring, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if acquiring in done:
                return acquiring.result()
            if gone in done:
                raise _ConnectionLostError
            raise ClusterError(
                f"all {self.settings.desktops} desktops stayed lent for {timeout:.1f} s: "
                "use fewer sessions, more --desktops, or a longer deadline",
                ErrorCode.CAPACITY,
            )
        finally:
            gone.cancel()
            acquiring.cancel()  # no effect when it is done

    async def _do_lease(self, connection: ServerConnection, lease: _Lease, request: Request) -> Reply:
        _, slot, waited = await self._lend(connection, lease, None, request.deadline_ms / 1000)
        return Reply(request.id, {"slot": slot.seat.name, "queue": waited})

    async def _do_reset(self, connection: ServerConnection, lease: _Lease, request: Request) -> Reply:
        deadline = time.monotonic() + request.deadline_ms / 1000
        arguments = _ResetArguments.parse(request.args)
        task = self._resolve(arguments)
        session, slot, waited = await self._lend(connection, lease, task.desktop, request.deadline_ms / 1000)
        self.pool.fit(slot, task.desktop)
        slot.task = task.id
        with slot.working("reset" if slot.seat.fits(task.desktop) else "boot"):
            result = await session.reset(
                task,
                seed=arguments.seed,
                max_steps=arguments.max_steps,
                time_limit_s=arguments.time_limit_s,
                deadline_s=max(0.0, deadline - time.monotonic()),
            )
        result.timings["queue"] = waited
        result.timings["total"] += waited
        slot.episodes += result.terminal is None
        return self._step_reply(request, result)

    def _resolve(self, arguments: _ResetArguments) -> Task:
        name = arguments.task
        if isinstance(name, str) and name.endswith(".json"):
            raise UnknownTaskError(f"{name!r} is a file of the client's machine: send its content")
        task = resolve_task(name, arguments.desktop)
        if self.settings.sandbox is not None:
            task = dataclasses.replace(task, desktop=dataclasses.replace(task.desktop, sandbox=self.settings.sandbox))
        return task

    async def _do_step(self, connection: ServerConnection, lease: _Lease, request: Request) -> Reply:
        session, slot = _episode_of(lease)
        try:
            action = action_from_dict(request.args.get("action"))  # type: ignore[arg-type]  # it checks
        except (ValueError, TypeError) as error:
            return Reply(request.id, code=ErrorCode.BAD_ACTION, message=str(error))
        with slot.working("step"):
            result = await session.step(action, deadline_s=request.deadline_ms / 1000)
        return self._step_reply(request, result)

    async def _do_finish(self, connection: ServerConnection, lease: _Lease, request: Request) -> Reply:
        session, slot = _episode_of(lease)
        try:
            terminal = TerminalState(str(request.args.get("terminal")))
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        with slot.working("evaluate"):
            result = await session.finish(terminal, deadline_s=request.deadline_ms / 1000)
        return self._step_reply(request, result)

    async def _do_oracle(self, connection: ServerConnection, lease: _Lease, request: Request) -> Reply:
        session, slot = _episode_of(lease)
        with slot.working("oracle"):
            action = await session.oracle(deadline_s=request.deadline_ms / 1000)
        return Reply(request.id, {"action": action_to_dict(action)})

    def _step_reply(self, request: Request, result: StepResult) -> Reply:
        self._counters[request.op] += 1
        if result.evaluation is not None:
            self._counters["episodes_ended"] += 1
            if result.evaluation.status is not EvaluationStatus.OK:
                self._counters[result.evaluation.status] += 1
        return protocol.step_reply(request.id, result)

    def status(self) -> dict[str, Any]:
        """What every desktop does, and how much was done: plain values."""
        now = time.monotonic()
        return {
            "desktops": [_describe(slot, now) for slot in self.pool.slots],
            "counters": dict(self._counters),
            "sessions": len(self._leases),
            "waiting": self.pool.waiting,
            "uptime_s": now - self._started,
            "pid": os.getpid(),
        }


_Operation = Callable[[ServerConnection, _Lease, Request], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class _ResetArguments:
    task: str | dict[str, Any]
    seed: int
    max_steps: int | None
    time_limit_s: float | None
    desktop: dict[str, Any] | None

    @classmethod
    def parse(cls, args: dict[str, Any]) -> _ResetArguments:
        """Check the types of what came over the wire; raises `ProtocolError`."""
        match args:
            case {
                "task": str() | dict() as task,
                "seed": int(seed),
                "max_steps": int() | None as max_steps,
                "time_limit_s": float() | int() | None as time_limit_s,
                "desktop": dict() | None as desktop,
            }:
                return cls(task, seed, max_steps, time_limit_s, desktop)
        raise ProtocolError("reset takes task, seed, max_steps, time_limit_s and desktop")


def _episode_of(lease: _Lease) -> tuple[Session, Slot]:
    if lease.session is None or lease.slot is None:
        raise EpisodeStateError("this session has no desktop yet: call reset first")
    return lease.session, lease.slot


def _describe(slot: Slot, now: float) -> dict[str, Any]:
    spec = slot.seat.spec
    busy: dict[str, float] = dict(slot.busy_s)
    if slot.phase not in ("idle", "leased"):
        busy[slot.phase] = busy.get(slot.phase, 0.0) + now - slot.phase_since
    return {
        "slot": slot.seat.name,
        "spec": f"{spec.kind} {spec.width}x{spec.height} {spec.profile}" if spec else "",
        "task": slot.task,
        "phase": slot.phase,
        "phase_s": now - slot.phase_since,
        "episodes": slot.episodes,
        "alive": slot.seat.alive,
        "busy_s": busy,
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
