"""A session as the server sees it, over all its connections, and how long it may live."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.server import ServerConnection

from dart_gym.cluster.server.access_tokens import ANYBODY, Principal
from dart_gym.cluster.wire.error_codes import ErrorCode
from dart_gym.core.errors import ClusterError
from dart_gym.sessions.session import Session
from dart_gym.sessions.slot import Slot


@dataclass(slots=True, eq=False)
class ServedSession:
    """A client's hold of one desktop, from its first reset on.

    Attributes:
        token: a secret that resumes the session on a new connection.
        codec: image codec of its screenshots.
        principal: who opened it.
        slot: the slot that it holds; None before its first reset, and once it has ended.
        session: what runs on the slot.
        last_id: id of the last request that was executed; `last_reply` is its encoded reply.
        lock: held while a request is executed.
        worker: the task that executes it.
        last_used: monotonic time of the last request, or of the loss of the connection.
        held_since: monotonic time at which it got its slot.
        ended: nothing can be asked of it any more.
        connection: the client's; None while it is lost.
        handler: the task that serves the connection.
        reason: why the server ended it, if it did.
    """

    token: str
    codec: str
    principal: Principal = ANYBODY
    slot: Slot | None = None
    session: Session | None = None
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

    @property
    def owner(self) -> str:
        """Name of who it belongs to, for fairness and quotas; "" where there are no tokens."""
        return self.principal.name

    @property
    def busy(self) -> bool:
        """Whether an episode or an operation is under way."""
        return self.lock.locked() or (self.session is not None and self.session.running)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long sessions live, in seconds: without a connection, without a request, and with one desktop."""

    grace_s: float
    idle_s: float
    lifetime_s: float | None = None

    def verdict(self, served: ServedSession, now: float) -> ClusterError | None:
        """Why a session has to end now; None if it may go on."""
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
        """Whether a session has had its time, whatever it does."""
        return self.lifetime_s is not None and served.slot is not None and now - served.held_since > self.lifetime_s

    @property
    def shortest_s(self) -> float:
        """The shortest of them."""
        return min(self.grace_s, self.idle_s, self.lifetime_s or self.idle_s)
