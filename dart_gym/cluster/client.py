"""The client of a cluster: sessions over websockets that survive a dropped connection.

Invariants:
    - `ClientSession` has the methods of `dart_gym.session.Session`, so who drives episodes need not know which.
    - A request whose reply was lost is sent again with its id after the reconnect: the server executes it once.
    - If the session itself is lost (the server was restarted, or the grace period is over), a step's result is a
      value, terminal ENV_ERROR, and the next reset opens a new session. Only reset raises for an unreachable cluster.
    - One operation at a time in a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import websockets
from websockets.asyncio.client import ClientConnection, connect, unix_connect

from dart_gym.actions import Action, action_from_dict, action_to_dict
from dart_gym.cluster import protocol
from dart_gym.cluster.address import parse_address
from dart_gym.cluster.protocol import ErrorCode, Hello, Reply, Request
from dart_gym.errors import ClusterError, ProtocolError
from dart_gym.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState
from dart_gym.session import DEFAULT_DEADLINE_S
from dart_gym.tasks.registry import task_from_file

REPLY_MARGIN_S = 10.0  # how much later than its deadline a reply may come
MAX_SENDS = 4  # of one request, over reconnects
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 1.0  # between attempts to connect, doubling
_SESSION_GONE = frozenset({*protocol.SESSION_OVER, ErrorCode.UNREACHABLE, ErrorCode.TIMEOUT, ErrorCode.SHUTDOWN})


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client behaves.

    Attributes:
        codecs: image codecs, best first; () chooses raw on a Unix socket, PNG elsewhere.
        reconnect_s: how long a lost connection is tried again before the cluster counts as unreachable.
        heartbeat_s: interval of websocket pings; None for none.
        name: shown in the server's logs.
    """

    codecs: tuple[str, ...] = ()
    reconnect_s: float = 10.0
    heartbeat_s: float | None = 20.0
    name: str = ""


class ClusterClient:
    """Opens sessions of one cluster. Holds no connection itself.

    Args:
        url: `ws+unix:///path.sock`, `ws://host:port` or `wss://host:port`.
        token: bearer token, if the cluster wants one.
        settings: see `ClientSettings`.
    """

    def __init__(self, url: str, token: str | None = None, settings: ClientSettings | None = None) -> None:
        self.url = url
        self.settings = settings or ClientSettings()
        self._token = token
        self._address = parse_address(url)
        self._codecs = self.settings.codecs or (("raw", "png") if self._address.is_unix else ("png",))

    def session(self) -> ClientSession:
        """A session, to be used with `async with`. It gets its desktop at the first reset."""
        return ClientSession(self)

    async def status(self) -> dict[str, Any]:
        """What every desktop does, and counters. Needs no desktop.

        Raises:
            ClusterError: unreachable, or the token is wrong.
        """
        async with self.session() as session:
            return await session.status()

    async def connect(self, resume: str = "", take_over: bool = False) -> tuple[ClientConnection, protocol.Welcome]:
        """Open a connection for a new session, or for one to go on with, also if it has a living one (`take_over`).

        Raises:
            OSError, TimeoutError, websockets.WebSocketException: nobody answers; it may be tried again.
            ClusterError: refused (code AUTH, CAPACITY, BUSY, or one of `SESSION_OVER`).
            ProtocolError: not a cluster, or another version.
        """
        options: dict[str, Any] = {
            "compression": None,
            "max_size": protocol.MAX_REPLY_BYTES,
            "ping_interval": self.settings.heartbeat_s,
            "ping_timeout": 3 * self.settings.heartbeat_s if self.settings.heartbeat_s else None,
            "close_timeout": 2.0,
            "open_timeout": 10.0,
            "additional_headers": {"Authorization": f"Bearer {self._token}"} if self._token else None,
        }
        if self._address.is_local:
            options["proxy"] = None
        try:
            if self._address.is_unix:
                connection = await unix_connect(self._address.path, "ws://localhost/", **options)
            else:
                connection = await connect(self.url, **options)
        except websockets.InvalidStatus as error:
            raise self._refusal(error) from error
        try:
            name = self.settings.name or f"pid {os.getpid()}"
            hello = Hello(self._codecs, resume, client=name, take_over=take_over)
            await connection.send(protocol.encode_hello(hello))
            async with asyncio.timeout(10.0):
                return connection, protocol.decode_welcome(await connection.recv())
        except BaseException:
            await connection.close()
            raise

    def _refusal(self, error: websockets.InvalidStatus) -> ClusterError:
        status = error.response.status_code
        if status == 401:
            given = "the token is wrong" if self._token else "no token was given"
            return ClusterError(f"{self.url} refused the connection: {given}", ErrorCode.AUTH)
        return ClusterError(f"{self.url} refused the connection with HTTP status {status}", ErrorCode.UNREACHABLE)


class ClientSession:
    """Episodes on one desktop of the cluster. See `dart_gym.session.Session`, which runs on the other side."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._connection: ClientConnection | None = None
        self._token = ""
        self._next_id = 0
        self._lock = asyncio.Lock()
        self._closings = 0
        self._last: StepResult | None = None  # of the running episode

    async def __aenter__(self) -> ClientSession:
        await self._connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- operations

    async def lease(self, *, deadline_s: float = DEFAULT_DEADLINE_S) -> float:
        """Get a desktop's seat before the first reset would; returns the seconds waited.

        Raises:
            ClusterError: none was free within the deadline (code CAPACITY), or unreachable.
        """
        reply = await self._call("lease", {}, deadline_s)
        return float(reply.result.get("queue", 0.0))

    async def reset(
        self,
        task: str | dict[str, Any],
        *,
        seed: int,
        max_steps: int | None = None,
        time_limit_s: float | None = None,
        desktop: dict[str, Any] | None = None,
        pacing: str | None = None,
        accessibility: bool = False,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> StepResult:
        """Start an episode; waits for a free desktop within the deadline. See `Session.reset`.

        A path that ends in ".json" is read on this side.

        Raises:
            ClusterError: no desktop was free (code CAPACITY), or the cluster is unreachable.
            UnknownTaskError, TaskError, ConfigurationError, MissingDependencyError: as on the other side.
        """
        if isinstance(task, str) and task.endswith(".json"):
            task = task_from_file(Path(task)).raw
        self._last = None
        arguments = {
            "task": task,
            "seed": int(seed),
            "max_steps": max_steps,
            "time_limit_s": time_limit_s,
            "desktop": desktop,
            "pacing": pacing,
            "accessibility": accessibility,
        }
        try:
            reply = await self._call("reset", arguments, deadline_s)
        except ClusterError as error:
            if error.code not in protocol.SESSION_OVER:
                raise
            reply = await self._call("reset", arguments, deadline_s)  # on a new session: nothing is done twice
        return self._remember(protocol.step_result(reply))

    async def step(self, action: Action, *, deadline_s: float = DEFAULT_DEADLINE_S) -> StepResult:
        """Carry out an action. See `Session.step`."""
        return await self._advance("step", {"action": action_to_dict(action)}, deadline_s)

    async def finish(self, terminal: TerminalState, *, deadline_s: float = DEFAULT_DEADLINE_S) -> StepResult:
        """End the episode from the policy's side. See `Session.finish`."""
        return await self._advance("finish", {"terminal": terminal}, deadline_s)

    async def oracle(self, *, deadline_s: float = DEFAULT_DEADLINE_S) -> Action:
        """The next action of a perfect user. See `Session.oracle`."""
        reply = await self._call("oracle", {}, deadline_s)
        try:
            return action_from_dict(reply.result.get("action"))  # type: ignore[arg-type]  # it checks
        except ValueError as error:
            raise ProtocolError(f"the oracle's reply is no action: {error}") from None

    async def status(self) -> dict[str, Any]:
        """The server's status."""
        return (await self._call("status", {}, 30.0)).result

    async def close(self) -> None:
        """Give the desktop back, also while an operation is under way: the server cancels it. Idempotent.

        A server that is gone has nothing to be told.
        """
        self._last = None
        self._closings += 1
        token, self._token = self._token, ""
        if self._lock.locked():
            self._drop()
            connection = await self._take_over(token)
        else:
            connection, self._connection = self._connection, None
        if connection is None:
            return
        self._next_id += 1
        with contextlib.suppress(websockets.ConnectionClosed):
            await connection.send(protocol.encode_request(Request(self._next_id, "close", 0)))
        await connection.close()

    async def _take_over(self, token: str) -> ClientConnection | None:
        """A second connection to the session, because the first one is busy; None if there is no session any more."""
        if not token:
            return None
        with contextlib.suppress(OSError, TimeoutError, websockets.WebSocketException, ClusterError):
            return (await self._client.connect(token, take_over=True))[0]
        return None

    # --- how

    def _remember(self, result: StepResult) -> StepResult:
        self._last = result if result.terminal is None else None
        return result

    async def _advance(self, op: str, args: dict[str, Any], deadline_s: float) -> StepResult:
        try:
            return self._remember(protocol.step_result(await self._call(op, args, deadline_s)))
        except ClusterError as error:
            if error.code not in _SESSION_GONE or self._last is None:
                raise
            last, self._last = self._last, None
            return _lost(last, str(error))

    async def _call(self, op: str, args: dict[str, Any], deadline_s: float) -> Reply:
        """Send a request until its reply comes; raises the error that the reply holds."""
        async with self._lock:
            self._next_id += 1
            frame = protocol.encode_request(Request(self._next_id, op, deadline_s * 1000, args))
            reply = await self._exchange(frame, self._next_id, deadline_s)
        if reply.code is not None:
            raise protocol.exception_for(reply.code, reply.message)
        return reply

    async def _exchange(self, frame: bytes, request_id: int, deadline_s: float) -> Reply:
        reason, closings = "", self._closings
        for _ in range(MAX_SENDS):
            if self._closings != closings:
                raise ClusterError("the session was closed during the operation", ErrorCode.SESSION_LOST)
            connection = self._connection or await self._connect()
            try:
                await connection.send(frame)
                async with asyncio.timeout(deadline_s + REPLY_MARGIN_S):
                    return await self._receive(connection, request_id)
            except TimeoutError:
                self._drop()
                raise ClusterError(
                    f"{self._client.url} did not answer within {deadline_s + REPLY_MARGIN_S:g} s", ErrorCode.TIMEOUT
                ) from None
            except websockets.ConnectionClosed as error:
                self._connection = None
                reason = str(error)
                if error.rcvd is not None and error.rcvd.code == 1009:
                    raise ProtocolError(f"the request has {len(frame)} bytes, more than the server takes") from error
        raise ClusterError(f"the connection to {self._client.url} broke {MAX_SENDS} times: {reason}", "unreachable")

    async def _receive(self, connection: ClientConnection, request_id: int) -> Reply:
        while True:
            try:
                reply = protocol.decode_reply(await connection.recv())
            except ProtocolError:
                self._drop()
                raise
            if reply.id == request_id:
                return reply
            if reply.id == -1 and reply.code is not None:
                if reply.code is ErrorCode.SHUTDOWN:
                    continue  # the connection closes now; another server may take over
                self._drop()
                raise protocol.exception_for(reply.code, reply.message)
            if reply.id > request_id:
                self._drop()
                raise ProtocolError(f"reply {reply.id} comes before its request")
            # else: the late reply of a request whose caller was cancelled

    async def _connect(self) -> ClientConnection:
        """Connect, going on with the session if there is one; retries for `reconnect_s`.

        Raises:
            ClusterError: UNREACHABLE; or SESSION_LOST, after which the next call opens a new session.
        """
        give_up = time.monotonic() + self._client.settings.reconnect_s
        pause = FIRST_RETRY_S
        while True:
            try:
                self._connection, welcome = await self._client.connect(self._token)
            except ClusterError as error:
                if error.code in protocol.SESSION_OVER:
                    self._token = ""
                raise
            except (OSError, TimeoutError, websockets.WebSocketException) as error:
                if time.monotonic() + pause >= give_up:
                    raise ClusterError(
                        f"cannot reach the cluster at {self._client.url} ({type(error).__name__}: {error}): "
                        "is `dart-gym serve` running there?",
                        ErrorCode.UNREACHABLE,
                    ) from error
            else:
                self._token = welcome.session
                return self._connection
            await asyncio.sleep(pause)  # backing off between attempts
            pause = min(2 * pause, LAST_RETRY_S)

    def _drop(self) -> None:
        """Cut a connection that is of no use any more."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.transport.abort()


def _lost(last: StepResult, detail: str) -> StepResult:
    """The result of a step of an episode that the cluster lost."""
    observation = Observation(np.zeros_like(last.observation.screenshot), last.observation.instruction, detail)
    evaluation = Evaluation(EvaluationStatus.ENVIRONMENT_ERROR, None, "cluster", detail)
    return StepResult(observation, TerminalState.ENV_ERROR, evaluation, last.step_index, {"total": 0.0}, last.info)
