"""The sessions of a server: opened, resumed on a new connection, and ended from either side.

Invariants:
    - A session has at most one connection. One that is alive is not replaced, unless the client asks for it.
    - Who comes back to a session that the server has ended is told why.
    - A session is ended only after the operation that it executes was cancelled and is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import websockets
from websockets.asyncio.server import ServerConnection

from dart_gym.cluster.server.access_tokens import ANYBODY, Principal
from dart_gym.cluster.server.operations import Lease
from dart_gym.cluster.wire import frames
from dart_gym.cluster.wire.frames import ErrorCode, Hello
from dart_gym.core.errors import ClusterError, ProtocolError

PROBE_S = 2.0  # within which a connection answers a ping, if it is alive
_REMEMBERED = 1000  # sessions that the server has ended, with the reason


@dataclass(slots=True, eq=False)
class ConnectedLease(Lease):
    """A lease with whom it belongs to, and the connection that it has now, if any.

    Attributes:
        principal: who opened it.
        connection: of the client.
        handler: the task that serves the connection.
        reason: why the server ended it, if it did.
    """

    principal: Principal = ANYBODY
    connection: ServerConnection | None = None
    handler: asyncio.Task[Any] | None = None
    reason: ClusterError | None = None


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long sessions live, in seconds: without a connection, without a request, and with one desktop."""

    grace_s: float
    idle_s: float
    lifetime_s: float | None = None

    def verdict(self, lease: ConnectedLease, now: float) -> ClusterError | None:
        """Why a session has to end now; None if it may go on."""
        if self.is_expired(lease, now):
            message = f"the lease has lasted {self.lifetime_s:g} s, as long as one may: reset starts anew"
            return ClusterError(message, ErrorCode.EXPIRED)
        if lease.lock.locked():
            return None
        if lease.connection is None and now - lease.last_used > self.grace_s:
            return ClusterError("the session is gone: its grace period is over", ErrorCode.SESSION_LOST)
        if lease.slot is not None and now - lease.last_used > self.idle_s:
            message = f"no request for {self.idle_s:g} s: the lease has ended; reset starts anew"
            return ClusterError(message, ErrorCode.IDLE)
        return None

    def is_expired(self, lease: ConnectedLease, now: float) -> bool:
        """Whether a lease has had its time, whatever it does."""
        return self.lifetime_s is not None and lease.slot is not None and now - lease.leased_at > self.lifetime_s

    @property
    def shortest_s(self) -> float:
        """The shortest of them."""
        return min(self.grace_s, self.idle_s, self.lifetime_s or self.idle_s)


class Sessions:
    """The register of a server's sessions.

    Args:
        lifetimes: how long they live.
        give_back: takes the desktop of a session back (`Operations.end`).
        counters: what is counted, for the status.
    """

    def __init__(self, lifetimes: Lifetimes, give_back: Callable[[Lease], None], counters: Counter[str]) -> None:
        self.lifetimes = lifetimes
        self._give_back, self._counters = give_back, counters
        self._leases: dict[str, ConnectedLease] = {}
        self._over: OrderedDict[str, ClusterError] = OrderedDict()
        self._endings: set[asyncio.Task[None]] = set()
        self._progress = asyncio.Event()

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[ConnectedLease]:
        return iter(list(self._leases.values()))

    # --- begin

    def open(self, hello: Hello, principal: Principal) -> ConnectedLease:
        """A new session.

        Raises:
            ProtocolError: there is no common codec.
            ClusterError: the quota of sessions is used up (code CAPACITY).
        """
        codec = next((codec for codec in hello.codecs if codec in frames.CODECS), None)
        if codec is None:
            raise ProtocolError(f"no common image codec: the server has {', '.join(frames.CODECS)}")
        limit = principal.max_sessions
        if limit is not None and sum(lease.owner == principal.name for lease in self) >= limit:
            raise ClusterError(
                f"{principal.name} has {limit} sessions open, as many as it may: close one, or ask for a larger quota",
                ErrorCode.CAPACITY,
            )
        lease = ConnectedLease(secrets.token_urlsafe(18), codec, owner=principal.name, principal=principal)
        self._leases[lease.token] = lease
        self._counters["sessions"] += 1
        return lease

    async def resume(self, hello: Hello, principal: Principal) -> ConnectedLease:
        """A session to go on with on a new connection.

        Raises:
            ClusterError: it is gone (code SESSION_LOST, or why it was ended), or another client uses it (BUSY).
        """
        lease = self._leases.get(hello.resume)
        if lease is not None and lease.connection is not None and not hello.take_over:
            if await _answers(lease.connection):
                raise ClusterError(
                    "another client uses this session: open a new one, or say take_over to cut it off", ErrorCode.BUSY
                )
            lease = self._leases.get(hello.resume)  # it may have ended meanwhile
        if lease is None or lease.owner != principal.name:
            gone = ClusterError("the session is gone: its grace period is over", ErrorCode.SESSION_LOST)
            raise self._over.get(hello.resume, gone)
        self._counters["resumed"] += 1
        return lease

    def attach(self, lease: ConnectedLease, connection: ServerConnection, handler: asyncio.Task[Any]) -> None:
        """Give a session its connection; one that it had is half-open, or was given up, and is cut."""
        replaced, lease.connection, lease.handler = lease.connection, connection, handler
        lease.last_used = time.monotonic()
        if replaced is not None:
            replaced.transport.abort()

    # --- end

    def detach(self, lease: ConnectedLease) -> None:
        """Its connection is lost: the grace period begins, if there is something to come back to."""
        lease.connection, lease.handler, lease.last_used = None, None, time.monotonic()
        if lease.slot is None:
            self._end(lease)

    def forget(self, lease: ConnectedLease) -> None:
        """The client has closed it."""
        self._leases.pop(lease.token, None)
        self._progress.set()

    def check(self) -> None:
        """End the sessions whose time is over."""
        now = time.monotonic()
        for lease in self:
            reason = self.lifetimes.verdict(lease, now)
            if reason is not None:
                self.expel(lease, reason)

    def expel(self, lease: ConnectedLease, reason: ClusterError) -> None:
        """End a session from this side, whatever it does right now; its handler tells the client why."""
        self._counters[f"ended_{reason.code}"] += 1
        self._leases.pop(lease.token, None)
        lease.reason = self._over[lease.token] = reason
        if len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
        running = {task for task in (lease.worker, lease.handler) if task and task is not asyncio.current_task()}
        for task in running:
            task.cancel()
        ending = asyncio.create_task(self._end_after(lease, running))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _end_after(self, lease: ConnectedLease, running: set[asyncio.Task[Any]]) -> None:
        if running:
            await asyncio.wait(running)
        self._end(lease)

    def _end(self, lease: ConnectedLease) -> None:
        self._give_back(lease)
        self.forget(lease)

    # --- the server's end

    def progressed(self) -> None:
        """Something came to its end in a session."""
        self._progress.set()

    async def until_quiet(self) -> None:
        """Wait until no session has an episode or an operation under way."""
        while any(lease.busy for lease in self):
            self._progress.clear()
            await self._progress.wait()

    async def clear(self) -> None:
        """Forget all of them; their handlers have ended."""
        await asyncio.gather(*self._endings)
        self._leases.clear()


async def _answers(connection: ServerConnection) -> bool:
    """Whether somebody is at the other end."""
    with contextlib.suppress(websockets.ConnectionClosed, TimeoutError):
        async with asyncio.timeout(PROBE_S):
            await (await connection.ping())
            return True
    return False
