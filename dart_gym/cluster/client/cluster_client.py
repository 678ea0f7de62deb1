"""The client of a cluster, and its sessions: `dart_gym.sessions.session.Session` as it is used over a websocket.

A cluster is one server, or several (`ws://a,ws://b`): each new session goes to the least loaded one, and stays there.

Invariants:
    - A session has the methods of that class, so who drives episodes need not know which one it is.
    - A request whose reply was lost is sent again with its id after the reconnect: the server executes it once.
    - If the session itself is lost (the server was restarted, or the grace period is over), a step's result is a
      value, terminal ENV_ERROR, and the next reset opens a new session, on another server if there are several.
    - One operation at a time.
    - Where an episode may be scored, a reply is waited for as much longer as its server says that it may move the
      deadline of an evaluation: what the machine of the desktop was too busy for is no reason to give up an episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection

from dart_gym.cluster.client.cluster_servers import NO_ANSWER, ClusterServers, ServerRecord, combine
from dart_gym.cluster.wire import frames
from dart_gym.cluster.wire.frames import ErrorCode, Reply, Request
from dart_gym.cluster.wire.shared_frames import FrameReceiver, peer_of
from dart_gym.core.actions import Action, action_from_dict, action_to_dict
from dart_gym.core.errors import ClusterError, ProtocolError
from dart_gym.core.outcomes import StepResult, TerminalState
from dart_gym.core.tls_advice import tls_advice
from dart_gym.sessions.reset_request import ResetRequest
from dart_gym.sessions.session import DEFAULT_DEADLINE_S
from dart_gym.utils.backoff import Pauses
from dart_gym.utils.waits import waiting_for

REPLY_MARGIN_S = 10.0  # how much later than its deadline a reply may come
MAX_SENDS = 4  # of one request, over reconnects
LOOK_AROUND_S = 5.0  # how often a session that stands in line asks the other servers
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 1.0  # between attempts to connect, doubling
_BIG_FRAME_BYTES = 50_000  # of a compressed screen
_WAITS = {
    "acquire": "a free desktop",
    "reset": "a desktop with the task on it",
    "step": "a desktop that carries out an action",
    "finish": "the end of an episode",
    "oracle": "the oracle",
    "status": "the status",
    "lacking": "a list of what the desktops lack",
}
"""What a person is told that a long operation waits for."""
_SCORED = frozenset({"step", "finish"})  # operations that can end with an evaluation
CLOSED = "the session was closed during the operation"
_SESSION_GONE = frozenset({*frames.SESSION_OVER, ErrorCode.UNREACHABLE, ErrorCode.TIMEOUT, ErrorCode.SHUTDOWN})
_FULL = frozenset({ErrorCode.CAPACITY, ErrorCode.SHUTDOWN})  # of a server that takes no new session now


class ClientSession:
    """Episodes on one desktop of the cluster. See `dart_gym.sessions.session.Session`, which runs on the other side."""

    def __init__(self, servers: ClusterServers) -> None:
        self._servers = servers
        self._server: ServerRecord | None = None  # where the session is, once it has been opened
        self.connection: ClientConnection | None = None
        self.token = ""
        self._codec = "raw"
        self._extension_s = 0.0  # by which its server may move the deadline of an evaluation
        self._receiver = FrameReceiver(0)
        self._holds_slot = False  # whether it is known to have a desktop
        self._next_id = 0
        self._lock = asyncio.Lock()
        self._closings = 0  # sessions that were given up; `_goodbyes` counts those by the caller
        self._goodbyes = 0
        self._last: StepResult | None = None  # of the running episode

    async def __aenter__(self) -> ClientSession:
        await self._connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- operations

    async def acquire(self, *, deadline_s: float = DEFAULT_DEADLINE_S) -> float:
        """Wait for a slot before the first reset does, and return the seconds waited.

        Raises:
            ClusterError: if no slot becomes free in time.
        """
        if self._servers.several:
            return await self._stand_in_line(deadline_s)
        return float((await self._begin("acquire", {}, deadline_s))[0].result.get("queue", 0.0))

    async def reset(
        self, task: ResetRequest | str | dict[str, Any], *, deadline_s: float = DEFAULT_DEADLINE_S, **fields: Any
    ) -> StepResult:
        """Start an episode; waits for a free desktop within the deadline. See `Session.reset`.

        Args:
            task: a request, or its task; a file of a task is read on this side.
            deadline_s: seconds that this operation may take, with the wait.
            fields: those of `ResetRequest` besides the task ("seed", "max_steps", ...), where none is given.

        Raises:
            ClusterError: no desktop was free (code CAPACITY), or the cluster is unreachable.
            UnknownTaskError, TaskError, ConfigurationError, MissingDependencyError: as on the other side.
        """
        arguments = ResetRequest.of(task, fields).with_content().to_wire()
        self._last = None
        reply, waited = await self._begin("reset", arguments, deadline_s)
        result = frames.step_result(reply)
        for phase in ("queue", "total"):
            result.timings[phase] = result.timings.get(phase, 0.0) + waited
        return self._remember(result)

    async def step(self, action: Action, *, deadline_s: float = DEFAULT_DEADLINE_S) -> StepResult:
        """Carry out an action. See `Session.step`."""
        return await self._advance("step", {"action": action_to_dict(action)}, deadline_s)

    async def finish(self, terminal: TerminalState, *, deadline_s: float = DEFAULT_DEADLINE_S) -> StepResult:
        """End the episode from the policy's side. See `Session.finish`."""
        return await self._advance("finish", {"terminal": terminal}, deadline_s)

    async def oracle(self, *, deadline_s: float = DEFAULT_DEADLINE_S) -> Action:
        """The next action of a perfect user. See `Session.oracle`."""
        reply = await self.call("oracle", {}, deadline_s)
        try:
            return action_from_dict(reply.result.get("action"))  # type: ignore[arg-type]  # it checks
        except ValueError as error:
            raise ProtocolError(f"the oracle's reply is no action: {error}") from None

    async def status(self) -> dict[str, Any]:
        """The server's status."""
        return (await self.call("status", {}, 30.0)).result

    async def ask_lacking(self, asked: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """Which programs and files, of those that are asked for, the server does not have. See `Lacking`."""
        return (await self.call("lacking", asked, deadline_s)).result

    async def close(self) -> None:
        """Give the desktop back, also in an operation, which fails; a gone server is told nothing. Idempotent."""
        self._goodbyes += 1
        await self._end()

    async def _end(self) -> None:
        """Give the session up; the next operation opens another one."""
        self._last = None
        self._closings += 1
        token, self.token = self.token, ""
        server, self._server = self._server, None
        if self._lock.locked():
            self.drop()
            connection = await self._take_over(server, token)
        else:
            connection, self.connection = self.connection, None
        if connection is None:
            return
        self._next_id += 1
        with contextlib.suppress(websockets.ConnectionClosed):
            await connection.send(frames.encode_request(Request(self._next_id, "close", 0)))
        await connection.close()

    async def _take_over(self, server: ServerRecord | None, token: str) -> ClientConnection | None:
        """A second connection to the session, because the first one is busy; None if there is no session any more."""
        if not token or server is None:
            return None
        with contextlib.suppress(*NO_ANSWER, ClusterError):
            return (await self._servers.connect(server, token, take_over=True))[0]
        return None

    # --- how

    @property
    def server_url(self) -> str:
        """Of the server that it is on, or of all that it may be opened on."""
        return self._server.address.url if self._server else self._servers.url

    def _lost_its_server(self, error: ClusterError) -> bool:
        """Return whether a new session may do on another server what failed on this one."""
        return self._servers.several and error.code in (ErrorCode.UNREACHABLE, ErrorCode.SHUTDOWN)

    def _leave(self) -> None:
        """Give the session up, where another server can take its place. A single one may come back with it."""
        if self._servers.several:
            self._server, self.token = None, ""

    def _remember(self, result: StepResult) -> StepResult:
        self._last = result if result.terminal is None else None
        return result

    async def _begin(self, op: str, args: dict[str, Any], deadline_s: float) -> tuple[Reply, float]:
        """Send a request that a new session can answer as well, on another server if need be.

        Returns the reply, and the seconds that were waited for a slot, which one of several servers has first.
        """
        goodbyes = self._goodbyes
        moved = False
        waited = 0.0
        for more in reversed(range(MAX_SENDS)):  # on a bad line a new session can be lost as the first one was
            if self._servers.several and not self._holds_slot:
                waited += await self._stand_in_line(max(0.0, deadline_s - waited))
            try:
                return await self.call(op, args, max(0.0, deadline_s - waited)), waited
            except ClusterError as error:
                left = self._lost_its_server(error)
                last = not more or self._goodbyes != goodbyes or (moved and left)
                if last or not await self._can_begin_anew(error):
                    raise
                moved, self._holds_slot = moved or left, False
        raise AssertionError("the last attempt returns or raises")

    async def _can_begin_anew(self, error: ClusterError) -> bool:
        """Return whether a new session may have better luck; leaves the server that was lost."""
        if self._lost_its_server(error):
            if self._server is not None:
                self._server.failed(time.monotonic())
            await self._end()
            return True
        return error.code in frames.SESSION_OVER

    async def _stand_in_line(self, deadline_s: float) -> float:
        """Get a slot of whichever server has one first, keeping the place in each line; the seconds waited."""
        started = time.monotonic()
        failed = False
        goodbyes = self._goodbyes
        while self._goodbyes == goodbyes:
            remaining = max(0.0, started + deadline_s - time.monotonic())
            asking = asyncio.ensure_future(self.call("acquire", {}, remaining))
            try:
                moved = await self._look_around(asking)
            except ClusterError as error:
                if failed or self._goodbyes != goodbyes or not await self._can_begin_anew(error):
                    raise
                failed = True
            else:
                if not moved:
                    self._holds_slot = True
                    return time.monotonic() - started
        raise ClusterError(CLOSED, ErrorCode.SESSION_LOST)

    async def _look_around(self, asking: asyncio.Future[Reply]) -> bool:
        """Wait for a slot, or until another server has a free one; returns whether the line has been left for that."""
        try:
            while True:
                await asyncio.wait({asking}, timeout=LOOK_AROUND_S)
                if asking.done():
                    asking.result()
                    return False
                if await self._servers.look_elsewhere(self._server):
                    break
            await self._end()
            with contextlib.suppress(ClusterError):
                await asking  # it says that its session was closed
            return True
        finally:
            asking.cancel()

    async def _advance(self, op: str, args: dict[str, Any], deadline_s: float) -> StepResult:
        try:
            return self._remember(frames.step_result(await self.call(op, args, deadline_s)))
        except ClusterError as error:
            if error.code not in _SESSION_GONE or self._last is None:
                raise
            last, self._last = self._last, None
            seen = last.observation
            return StepResult.lost(
                seen.screenshot.shape[:2],
                str(error),
                evaluator="cluster",
                instruction=seen.instruction,
                step_index=last.step_index,
                timings={"total": 0.0},
                info=last.info,
            )

    async def call(self, op: str, args: dict[str, Any], deadline_s: float) -> Reply:
        """Send a request until its reply comes; raises the error that the reply holds."""
        async with self._lock:
            self._next_id += 1
            frame = frames.encode_request(Request(self._next_id, op, deadline_s * 1000, args))
            reply = await self._exchange(frame, self._next_id, op, deadline_s)
        if reply.code is not None:
            raise frames.exception_for(reply.code, reply.message)
        return reply

    async def _exchange(self, frame: bytes, request_id: int, op: str, deadline_s: float) -> Reply:
        reason, closings = "", self._closings
        limit_s = deadline_s
        for _ in range(MAX_SENDS):
            if self._closings != closings:
                raise ClusterError(CLOSED, ErrorCode.SESSION_LOST)
            connection = self.connection or await self._connect()
            try:
                await connection.send(frame)
                limit_s = deadline_s + (self._extension_s if op in _SCORED else 0.0)
                with waiting_for(f"{_WAITS.get(op, op)} at {self.server_url}", limit_s):
                    async with asyncio.timeout(limit_s + REPLY_MARGIN_S):
                        return await self._receive(connection, request_id)
            except TimeoutError:
                self.drop()
                raise ClusterError(
                    f"{self.server_url} did not answer within {limit_s + REPLY_MARGIN_S:g} s", ErrorCode.TIMEOUT
                ) from None
            except websockets.ConnectionClosed as error:
                self.connection = None
                reason = str(error)
                if error.rcvd is not None and error.rcvd.code == 1009:
                    raise ProtocolError(f"the request has {len(frame)} bytes, more than the server takes") from error
        url = self.server_url
        self._leave()
        raise ClusterError(f"the connection to {url} broke {MAX_SENDS} times: {reason}", ErrorCode.UNREACHABLE)

    async def _receive(self, connection: ClientConnection, request_id: int) -> Reply:
        while True:
            try:
                reply = await self._decoded(await connection.recv())
            except ProtocolError:
                self.drop()
                raise
            if reply.id == request_id:
                return reply
            if reply.id == -1 and reply.code is not None:
                if reply.code is ErrorCode.SHUTDOWN and not self._servers.several:
                    continue  # the connection closes now; another process may take over its address
                self.drop()
                if reply.code in frames.SESSION_OVER:
                    self.token, self._server = "", None
                if reply.code is ErrorCode.SHUTDOWN and self._server is not None:
                    self._server.failed(time.monotonic())
                    self._leave()
                raise frames.exception_for(reply.code, reply.message)
            if reply.id > request_id:
                self.drop()
                raise ProtocolError(f"reply {reply.id} comes before its request")
            # else: the late reply of a request whose caller was cancelled

    async def _decoded(self, frame: bytes | str) -> Reply:
        """Decode a reply; a compressed screen takes milliseconds, so that is done in a thread."""
        if self._codec != "raw" and len(frame) > _BIG_FRAME_BYTES:
            return await asyncio.to_thread(frames.decode_reply, frame)
        return frames.decode_reply(frame, self._receiver)

    async def _connect(self) -> ClientConnection:
        """Connect, going on with a session, else on the best server. Raises `ClusterError`, also SESSION_LOST."""
        with waiting_for(f"the cluster at {self.server_url}", self._servers.settings.reconnect_s):
            return await self._insist()

    async def _insist(self) -> ClientConnection:
        deadline = time.monotonic() + self._servers.settings.reconnect_s
        pauses = Pauses(deadline, FIRST_RETRY_S, LAST_RETRY_S)
        while True:
            reasons: list[Exception] = []
            servers = [self._server] if self._server else await self._servers.by_preference()
            for server in servers:
                connection = await self._try(server, reasons)
                if connection is not None:
                    return connection
            if reasons and all(isinstance(reason, ClusterError) for reason in reasons):
                raise reasons[0]  # every server answered, and refused
            pause = pauses.next()
            if pause is None:
                url, error = self.server_url, reasons[-1] if reasons else ConnectionError("it lists no server")
                self._leave()
                advice = tls_advice(error)
                why = advice or f"({type(error).__name__}: {error}): is `dart-gym serve` running there?"
                raise ClusterError(
                    f"cannot reach the cluster at {url}{':' if advice else ''} {why}", ErrorCode.UNREACHABLE
                ) from error
            await asyncio.sleep(pause)

    async def _try(self, server: ServerRecord, reasons: list[Exception]) -> ClientConnection | None:
        """Connect to one server; None, and a reason more, if it does not answer or takes nobody."""
        server.placed += self._server is None  # at once, so that sessions that are opened together spread
        try:
            connection, welcome = await self._servers.connect(server, self.token)
        except ClusterError as error:
            if error.code in frames.SESSION_OVER:
                self.token, self._server = "", None
            if error.code not in _FULL:
                raise
            reasons.append(error)
        except NO_ANSWER as error:
            reasons.append(error)
        else:
            self._holds_slot = self._holds_slot and welcome.resumed
            self.connection = connection
            self.token = welcome.session
            self._server = server
            self._codec = welcome.codec
            self._extension_s = welcome.limits.get("extension_s", 0.0)
            self._receiver = FrameReceiver(peer_of(connection.transport.get_extra_info("socket")))
            return connection
        server.failed(time.monotonic())
        return None

    def drop(self) -> None:
        """Cut a connection that is of no use any more."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.transport.abort()


class ClusterClient(ClusterServers):
    """Opens sessions of one cluster. Holds no connection itself."""

    def session(self) -> ClientSession:
        """A session, to be used with `async with`. It gets its desktop at the first reset."""
        return ClientSession(self)

    async def status(self) -> dict[str, Any]:
        """Return what every desktop does, and counters, in total and by server. Raises `ClusterError`."""
        if not self.several:
            async with self.session() as session:
                return await session.status()
        self._read_list()
        answers = await asyncio.gather(*(self.ask(server) for server in self.records))
        if not any(isinstance(answer, dict) for answer in answers):
            reason = answers[0] if answers else "it lists no server"
            raise ClusterError(f"cannot reach the cluster at {self.url}: {reason}", ErrorCode.UNREACHABLE)
        return combine(dict(zip((server.address.url for server in self.records), answers, strict=True)))
