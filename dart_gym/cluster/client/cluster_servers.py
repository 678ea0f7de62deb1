"""The servers of a cluster: which one a new session goes to (the least loaded one that answers), and how to reach it.

Invariants:
    - Deciding is a function of values (`preference`); `ServerRecord` keeps them, `ClusterServers` asks.
    - What a server's last status could not know yet, the sessions that this client gave it since, counts as load.
    - A server that did not answer is asked last, and not at all for a while: longer after each failure. A wrong token
      is an error at once.
    - Holds no connection itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection, connect, unix_connect

from dart_gym.cluster.wire import frames
from dart_gym.cluster.wire.cluster_address import Address, parse_address
from dart_gym.cluster.wire.frames import ErrorCode, Hello, Request
from dart_gym.cluster.wire.local_tokens import find_local_token
from dart_gym.cluster.wire.shared_frames import offers
from dart_gym.core.errors import ClusterError, ConfigurationError, ProtocolError
from dart_gym.utils.backoff import backoff

STATUS_TIMEOUT_S = 5.0
STATUS_AGE_S = 2.0  # a status may be so old when a session is placed by it
FIRST_REST_S, LAST_REST_S = 1.0, 30.0  # how long a server that failed is left alone, doubling
LISTED_HEARTBEAT_S = 5.0  # of websockets to servers of a list that changes
FILE = "file://"
NO_ANSWER = (OSError, TimeoutError, websockets.WebSocketException)
"""What a connection raises when nobody answers at its other end."""


def check_codec(name: str) -> str:
    """The name of an image codec; raises `ConfigurationError` for another one."""
    if name not in frames.CODECS:
        raise ConfigurationError(f"unknown codec {name!r}; choose one of {', '.join(frames.CODECS)}")
    return name


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client behaves.

    Attributes:
        codecs: image codecs, best first; () chooses memory that both sides share where the server is on a Unix socket
            of this user, raw where it runs on this machine, PNG elsewhere. (A tunnel looks like this machine, too:
            name a codec there.)
        reconnect_s: how long a lost connection is tried again before the cluster counts as unreachable.
        answer_s: how long a server may take to accept a connection, and to welcome a session.
        heartbeat_s: interval of websocket pings; None for none.
        name: shown to those who watch the desktops; "" for the number of the process.
    """

    codecs: tuple[str, ...] = ()
    reconnect_s: float = 10.0
    answer_s: float = 10.0
    heartbeat_s: float | None = 20.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What a server said about itself: desktops that it may run, those that are lent, sessions waiting for one."""

    desktops: int
    lent: int
    waiting: int

    @classmethod
    def of_status(cls, status: dict[str, Any]) -> Load:
        """From the result of the operation `status`."""
        phases = [desktop["phase"] for desktop in status["desktops"]]
        return cls(len(phases), sum(phase != "idle" for phase in phases), int(status["waiting"]))


@dataclass(slots=True, eq=False)
class ServerRecord:
    """What a client knows of one server; after `failures` in a row it is left alone until `down_until`."""

    address: Address
    load: Load | None = None
    asked_at: float = -math.inf
    placed: int = 0
    failures: int = 0
    down_until: float = -math.inf

    def answered(self, load: Load, now: float) -> None:
        """Note a status."""
        self.load = load
        self.asked_at = now
        self.placed = 0
        self.failures, self.down_until = 0, -math.inf

    def failed(self, now: float) -> None:
        """Note that it did not answer, or takes nobody."""
        self.failures += 1
        self.asked_at = -math.inf
        self.placed = 0
        self.down_until = now + backoff(self.failures, FIRST_REST_S, LAST_REST_S)

    def is_down(self, now: float) -> bool:
        """Return whether it failed so recently that nobody need ask."""
        return now < self.down_until

    def demand(self) -> float:
        """Desktops wanted per desktop with one more session: above 1 that has to wait, as where no load is known."""
        if self.load is None:
            return 1.0 + self.placed
        return (self.load.lent + self.load.waiting + self.placed + 1) / max(1, self.load.desktops)


def room_elsewhere(servers: Sequence[ServerRecord], here: ServerRecord | None, now: float) -> ServerRecord | None:
    """A server with a free desktop for a session that waits in line on another one, or None."""
    found = [server for server in preference(servers, now) if server is not here and not server.is_down(now)]
    return found[0] if found and found[0].load is not None and found[0].demand() <= 1.0 else None


def preference(servers: Sequence[ServerRecord], now: float) -> list[ServerRecord]:
    """The servers in the order in which a new session tries them. Equal ones stay in the given order."""
    return sorted(servers, key=lambda server: (server.is_down(now), server.demand()))


def server_urls(url: str) -> list[str]:
    """The URLs of a list with commas, or of a file (`file:///path`, one a line). Raises `ConfigurationError`."""
    if url.startswith(FILE):
        try:
            urls = Path(url.removeprefix(FILE)).read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"cannot read the cluster's list of servers {url}: {error}") from error
    else:
        urls = [part.strip() for part in url.split(",")]
    for one in urls:
        parse_address(one)
    if len(set(urls)) < len(urls):
        raise ConfigurationError(f"a server is named twice in {url!r}")
    return urls


def combine(statuses: dict[str, dict[str, Any] | str]) -> dict[str, Any]:
    """One status of several servers' by URL, where a text says why a server gave none."""
    answers = {url: status for url, status in statuses.items() if isinstance(status, dict)}
    counters: dict[str, int] = {}
    for status in answers.values():
        for name, count in status["counters"].items():
            counters[name] = counters.get(name, 0) + count
    return {
        "desktops": [{**desktop, "server": url} for url, status in answers.items() for desktop in status["desktops"]],
        "warm": [one for status in answers.values() for one in status["warm"]],
        "waiting": sum(status["waiting"] for status in answers.values()),
        "waiting_to_boot": sum(status["waiting_to_boot"] for status in answers.values()),
        "waiting_because": "; ".join(filter(None, (status["waiting_because"] for status in answers.values()))),
        "sessions": sum(status["sessions"] for status in answers.values()),
        "uptime_s": max((status["uptime_s"] for status in answers.values()), default=0.0),
        "counters": counters,
        "servers": statuses,
    }


class ClusterServers:
    """All servers of one cluster, with what is known of each.

    Args:
        url: `ws+unix:///path.sock`, `ws://host:port` or `wss://host:port`; of several servers, separated by commas; or
            `file:///path` of a file with one in each line, which is read again when it changes.
    """

    def __init__(self, url: str, token: str | None = None, settings: ClientSettings | None = None) -> None:
        self.url = url
        self.settings = settings or ClientSettings()
        self._listed = (0, 0)  # inode and time of the file of servers
        self.records = [ServerRecord(parse_address(one)) for one in server_urls(url)]
        self._token = token
        self._asking: asyncio.Future[Any] | None = None

    @property
    def several(self) -> bool:
        """Return whether another server may take the place of one that is lost."""
        return len(self.records) > 1 or self.url.startswith(FILE)

    def _read_list(self) -> None:
        """Take up a list of servers that has changed; those that stay keep what is known of them."""
        if not self.url.startswith(FILE):
            return
        with contextlib.suppress(FileNotFoundError):  # it is being replaced
            found = os.stat(self.url.removeprefix(FILE))
            if self._listed != (now := (found.st_ino, found.st_mtime_ns)):
                known = {record.address.url: record for record in self.records}
                self.records = [known.get(one) or ServerRecord(parse_address(one)) for one in server_urls(self.url)]
                self._listed = now

    async def by_preference(self) -> list[ServerRecord]:
        """The servers in the order in which a new session should try them; asks those whose status is old."""
        self._read_list()
        if not self.several:
            return self.records
        now = time.monotonic()
        old = [one for one in self.records if now - one.asked_at > STATUS_AGE_S and not one.is_down(now)]
        if old:  # a thousand sessions that are placed at once ask once, and go on at once
            if self._asking is None or self._asking.done():
                self._asking = asyncio.gather(*(self.ask(server) for server in old))
            await asyncio.shield(self._asking)
        return preference(self.records, time.monotonic())

    async def look_elsewhere(self, here: ServerRecord | None) -> bool:
        """Return whether another server has a free desktop for a session that waits here, and count it as taken."""
        await self.by_preference()
        found = room_elsewhere(self.records, here, time.monotonic())
        if found is not None:
            found.placed += 1
        return found is not None

    async def ask(self, server: ServerRecord) -> dict[str, Any] | str:
        """Return a server's status and note it in the server's record, or return why there is no status.

        Raises:
            ClusterError: if the token is wrong.
        """
        try:
            async with asyncio.timeout(STATUS_TIMEOUT_S):
                connection, _ = await self.connect(server)
                try:
                    await connection.send(frames.encode_request(Request(1, "status", STATUS_TIMEOUT_S * 1000)))
                    reply = frames.decode_reply(await connection.recv())
                finally:
                    await connection.close()
        except (*NO_ANSWER, ProtocolError) as error:
            server.failed(time.monotonic())
            return f"{type(error).__name__}: {error}"
        except ClusterError as error:
            if error.code == ErrorCode.AUTH:
                raise
            server.failed(time.monotonic())
            return str(error)
        if reply.code is not None:
            server.failed(time.monotonic())
            return reply.message
        server.answered(Load.of_status(reply.result), time.monotonic())
        return reply.result

    async def connect(
        self, server: ServerRecord, resume: str = "", take_over: bool = False
    ) -> tuple[ClientConnection, frames.Welcome]:
        """Open a connection to a server for a new session, or to resume one of its sessions.

        With `take_over` also if that one has a living connection.

        Raises:
            OSError, TimeoutError, websockets.WebSocketException: nobody answers; it may be tried again.
            ClusterError: refused (code AUTH, CAPACITY, BUSY, or one of `SESSION_OVER`).
            ProtocolError: not a cluster, or another version.
        """
        address = server.address
        token = self._token or find_local_token(address)
        heartbeat_s = self.settings.heartbeat_s
        if heartbeat_s and self.url.startswith(FILE):  # its nodes come and go, and a lost one says no goodbye
            heartbeat_s = min(heartbeat_s, LISTED_HEARTBEAT_S)
        options: dict[str, Any] = {
            "compression": None,
            "max_size": frames.MAX_REPLY_BYTES,
            "ping_interval": heartbeat_s,
            "ping_timeout": 3 * heartbeat_s if heartbeat_s else None,
            "close_timeout": 2.0,
            "open_timeout": self.settings.answer_s,
            "additional_headers": {"Authorization": f"Bearer {token}"} if token else None,
        }
        if address.is_local:
            options["proxy"] = None
        try:
            if address.is_unix:
                connection = await unix_connect(address.path, "ws://localhost/", **options)
            else:
                connection = await connect(address.url, **options)
        except websockets.InvalidStatus as error:
            raise _refusal(address, token, error) from error
        codecs = self.settings.codecs or (("raw", "png") if address.is_local else ("png",))
        if not self.settings.codecs:
            codecs = (*offers(connection.transport.get_extra_info("socket")), *codecs)
        try:
            name = self.settings.name or f"pid {os.getpid()}"
            hello = Hello(codecs, resume, client=name, take_over=take_over)
            await connection.send(frames.encode_hello(hello))
            async with asyncio.timeout(self.settings.answer_s):
                return connection, frames.decode_welcome(await connection.recv())
        except BaseException:
            await connection.close()
            raise


def _refusal(address: Address, token: str | None, error: websockets.InvalidStatus) -> ClusterError:
    status = error.response.status_code
    if status == 401:
        given = "the token is wrong" if token else "no token was given"
        whose = " (a server on loopback without --token-env is for the clients of its own user)"
        local = whose if address.is_local and not token else ""
        return ClusterError(f"{address.url} refused the connection: {given}{local}", ErrorCode.AUTH)
    if status == 429 or status >= 500:
        why = f"refused the connection with HTTP status {status}"
    else:
        why = f"answers with HTTP status {status}, and is no cluster: is `dart-gym serve` running there?"
    return ClusterError(f"{address.url} {why}", ErrorCode.UNREACHABLE)
