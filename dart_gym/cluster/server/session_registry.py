"""The sessions of a server: opened, resumed on a new connection, and ended from either side.

Invariants:
    - A session has at most one connection. One that is alive is not replaced, unless the client asks for it.
    - A client that returns to a session that the server has ended is told why.
    - A session is ended only after the operation that it executes was cancelled and is over.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import websockets
from websockets.asyncio.server import ServerConnection

from dart_gym.cluster.server.access_tokens import ANYBODY, Principal
from dart_gym.cluster.wire import frames
from dart_gym.cluster.wire.frames import ErrorCode, Hello
from dart_gym.cluster.wire.shared_frames import SHARED, FrameReceiver, FrameSender
from dart_gym.core.errors import ClusterError, ProtocolError
from dart_gym.sessions.session import Session
from dart_gym.sessions.slot import Slot

PROBE_S = 2.0  # within which a connection answers a ping, if it is alive
_REMEMBERED = 1000  # sessions that the server has ended, with the reason


@dataclass(slots=True, eq=False)
class ServedSession:
    """A client's hold of one desktop, from its first reset on.

    Attributes:
        client: what it calls itself.
        slot: the slot that it holds; None before its first reset, and once it has ended.
        sender: where its screens go that are shared.
        last_id: id of the last request that was executed; `last_reply` is its encoded reply.
        last_used: monotonic time of the last request, or of the loss of the connection.
        connection: the client's; None while it is lost.
    """

    token: str
    codec: str
    principal: Principal = ANYBODY
    client: str = ""
    slot: Slot | None = None
    session: Session | None = None
    sender: FrameSender = field(default_factory=FrameSender)
    last_id: int = 0
    last_reply: bytes = b""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    worker: asyncio.Task[Any] | None = None
    last_used: float = field(default_factory=time.monotonic)
    held_since: float = 0.0
    ended: bool = False
    connection: ServerConnection | None = None
    handler: asyncio.Task[Any] | None = None
    reason: ClusterError | None = None

    def go_on_by_bytes(self, codecs: Sequence[str]) -> None:
        """Send screens as bytes from now on, that of the last reply too: the new connection shares no memory."""
        self.codec = next((codec for codec in codecs if codec in frames.CODECS), "raw")
        if self.last_reply:
            reply = frames.decode_reply(self.last_reply, FrameReceiver(os.getpid()))
            self.last_reply = frames.encode_reply(reply, self.codec)

    @property
    def owner(self) -> str:
        """Name of who it belongs to, for fairness and quotas; "" where there are no tokens."""
        return self.principal.name

    @property
    def busy(self) -> bool:
        """Return whether an episode or an operation is under way."""
        return self.lock.locked() or (self.session is not None and self.session.running)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long sessions live, in seconds: without a connection, without a request, and with one desktop."""

    grace_s: float
    idle_s: float
    lifetime_s: float | None = None

    def verdict(self, served: ServedSession, now: float) -> ClusterError | None:
        """Return why a session has to end now; None if it may continue."""
        if self.is_expired(served, now):
            message = f"the session has lasted {self.lifetime_s:g} s, as long as one may: reset starts anew"
            return ClusterError(message, ErrorCode.EXPIRED)
        if served.lock.locked():
            return None
        if served.connection is None and now - served.last_used > self.grace_s:
            return ClusterError("the session is gone: its grace period is over", ErrorCode.SESSION_LOST)
        if served.slot is not None and now - served.last_used > self.idle_s:
            message = f"no request for {self.idle_s:g} s: the session has ended; reset starts anew"
            return ClusterError(message, ErrorCode.IDLE)
        return None

    def is_expired(self, served: ServedSession, now: float) -> bool:
        """Return whether a session has used up its time."""
        return self.lifetime_s is not None and served.slot is not None and now - served.held_since > self.lifetime_s

    @property
    def shortest_s(self) -> float:
        """The shortest of them."""
        return min(self.grace_s, self.idle_s, self.lifetime_s or self.idle_s)


class Sessions:
    """The register of a server's sessions."""

    def __init__(
        self, lifetimes: Lifetimes, give_back: Callable[[ServedSession], None], counters: Counter[str]
    ) -> None:
        self.lifetimes = lifetimes
        self._give_back = give_back
        self._counters = counters
        self._sessions: dict[str, ServedSession] = {}
        self._over: OrderedDict[str, ClusterError] = OrderedDict()
        self._endings: set[asyncio.Task[None]] = set()
        self._progress = asyncio.Event()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ServedSession]:
        return iter(list(self._sessions.values()))

    # --- begin

    def open(self, hello: Hello, principal: Principal) -> ServedSession:
        """A new session. Raises `ProtocolError` without a common codec, `ClusterError` when the quota is used up."""
        codec = next((codec for codec in hello.codecs if codec in (SHARED, *frames.CODECS)), None)
        if codec is None:
            raise ProtocolError(f"no common image codec: the server has {', '.join(frames.CODECS)}")
        limit = principal.max_sessions
        if limit is not None and sum(served.owner == principal.name for served in self) >= limit:
            raise ClusterError(
                f"{principal.name} has {limit} sessions open, as many as it may: close one, or ask for a larger quota",
                ErrorCode.CAPACITY,
            )
        served = ServedSession(secrets.token_urlsafe(18), codec, principal, hello.client)
        self._sessions[served.token] = served
        self._counters["sessions"] += 1
        return served

    async def resume(self, hello: Hello, principal: Principal) -> ServedSession:
        """Return the session that a new connection resumes.

        Raises:
            ClusterError: if the session has ended, or is in use by another connection (BUSY).
        """
        served = self._sessions.get(hello.resume)
        if served is not None and served.connection is not None and not hello.take_over:
            if await _answers(served.connection):
                raise ClusterError(
                    "another client uses this session: open a new one, or say take_over to cut it off", ErrorCode.BUSY
                )
            served = self._sessions.get(hello.resume)  # it may have ended meanwhile
        if served is None or served.owner != principal.name:
            gone = ClusterError("the session is gone: its grace period is over", ErrorCode.SESSION_LOST)
            raise self._over.get(hello.resume, gone)
        self._counters["resumed"] += 1
        return served

    def attach(self, served: ServedSession, connection: ServerConnection, handler: asyncio.Task[Any]) -> None:
        """Give a session its connection; one that it had is half-open, or was given up, and is cut."""
        replaced = served.connection
        served.connection = connection
        served.handler = handler
        served.last_used = time.monotonic()
        if replaced is not None:
            replaced.transport.abort()

    # --- end

    def detach(self, served: ServedSession) -> None:
        """Its connection is lost: the grace period begins, if there is something to come back to."""
        served.connection = None
        served.handler = None
        served.last_used = time.monotonic()
        if served.slot is None:
            self._end(served)

    def forget(self, served: ServedSession) -> None:
        """The client has closed it."""
        self._sessions.pop(served.token, None)
        self._progress.set()

    def check(self) -> None:
        """End the sessions whose time is over."""
        now = time.monotonic()
        for served in self:
            reason = self.lifetimes.verdict(served, now)
            if reason is not None:
                self.expel(served, reason)

    def expel(self, served: ServedSession, reason: ClusterError) -> None:
        """End a session from this side, even in the middle of an operation; its handler tells the client why."""
        self._counters[f"ended_{reason.code}"] += 1
        self._sessions.pop(served.token, None)
        served.reason = self._over[served.token] = reason
        if len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
        running = {task for task in (served.worker, served.handler) if task and task is not asyncio.current_task()}
        for task in running:
            task.cancel()
        ending = asyncio.create_task(self._end_after(served, running))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _end_after(self, served: ServedSession, running: set[asyncio.Task[Any]]) -> None:
        if running:
            await asyncio.wait(running)
        self._end(served)

    def _end(self, served: ServedSession) -> None:
        self._give_back(served)
        self.forget(served)

    # --- the server's end

    def progressed(self) -> None:
        """Something came to its end in a session."""
        self._progress.set()

    async def until_quiet(self) -> None:
        """Wait until no session has an episode or an operation under way."""
        while any(served.busy for served in self):
            self._progress.clear()
            await self._progress.wait()

    async def clear(self) -> None:
        """Forget all of them; their handlers have ended."""
        await asyncio.gather(*self._endings)
        self._sessions.clear()


async def _answers(connection: ServerConnection) -> bool:
    """Return whether somebody is at the other end."""
    with contextlib.suppress(websockets.ConnectionClosed, TimeoutError):
        async with asyncio.timeout(PROBE_S):
            await (await connection.ping())
            return True
    return False
