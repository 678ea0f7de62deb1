"""OpenEnv's websocket messages on the cluster's port: its clients get an ordinary session, translated frame by frame.

OpenEnv (TRL, SkyRL, verifiers) sends JSON text, `{"type": "reset" | "step" | "state" | "close", "data": {...}}`, to
the path `/ws`. An `OpenEnvConnection` stands between such a client and the server, which sees the cluster's own
protocol: a hello, then requests. So sessions, quotas, limits and counters are the same for both.

Invariants:
    - Every message gets exactly one answer, in the order of the messages. One that is wrong is answered with an error
      of OpenEnv's codes, and the session goes on.
    - A message that arrives before the one before it was answered shows that the client has timed out: that answer is
      dropped. The messages have no ids, so OpenEnv's client would take it, and every later one, for the answer to the
      message after it (their issue 1143).
    - Such a client cannot resume its session: when its connection is gone, its desktop is given back at once.
    - A fault of the environment ends the episode with reward null and `env_fault`, never with 0.
"""

import asyncio
import base64
import json
import secrets
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from dart_gym.cluster.wire import frames
from dart_gym.cluster.wire.frames import ErrorCode, Hello, Request
from dart_gym.core.errors import DartGymError
from dart_gym.core.outcomes import TerminalState
from dart_gym.sessions.reset_request import DEFAULT_TASK, MAX_SEED, ResetRequest

DEADLINE_S = 55.0  # of an operation: OpenEnv's clients give up after 60 s, and would take a later answer for another
MAX_WAITING = 16  # messages that a client may send ahead before its connection is not read
OPERATIONS = ("reset", "step", "state", "close")
_CODES = {
    ErrorCode.BAD_ACTION: "VALIDATION_ERROR",
    ErrorCode.UNKNOWN_TASK: "VALIDATION_ERROR",
    ErrorCode.TASK: "VALIDATION_ERROR",
    ErrorCode.CONFIGURATION: "VALIDATION_ERROR",
    ErrorCode.PROTOCOL: "VALIDATION_ERROR",
    ErrorCode.CAPACITY: "CAPACITY_REACHED",
    ErrorCode.DEPENDENCY: "FACTORY_ERROR",
    ErrorCode.STATE: "SESSION_ERROR",
    ErrorCode.AUTH: "SESSION_ERROR",
    ErrorCode.SESSION_LOST: "SESSION_ERROR",
    ErrorCode.IDLE: "SESSION_ERROR",
    ErrorCode.EXPIRED: "SESSION_ERROR",
    ErrorCode.SHUTDOWN: "SESSION_ERROR",
}  # all others are EXECUTION_ERROR


class ResetData(BaseModel):
    """The data of a reset: OpenEnv's own two, and what an episode of ours takes.

    Attributes:
        max_steps, time_limit_s, pacing, accessibility: as in `dart_gym.sessions.reset_request.ResetRequest`.
        width, height: size of the screen in pixels, instead of the task's.
        deadline_s: seconds that this and each following operation may take.
    """

    model_config = ConfigDict(extra="forbid")
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] | None = None
    episode_id: Annotated[StrictStr, Field(max_length=255)] | None = None
    task_id: StrictStr | None = None
    task: dict[str, Any] | None = None
    max_steps: Annotated[StrictInt, Field(ge=1)] | None = None
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    pacing: StrictStr | None = None
    accessibility: StrictBool = False
    width: StrictInt | None = None
    height: StrictInt | None = None
    deadline_s: Annotated[float, Field(gt=0, le=frames.MAX_DEADLINE_MS / 1000)] = DEADLINE_S

    def arguments(self) -> dict[str, Any]:
        """Those of the cluster's request."""
        size = {key: value for key, value in (("width", self.width), ("height", self.height)) if value is not None}
        return ResetRequest(
            self.task or self.task_id or DEFAULT_TASK,
            secrets.randbelow(MAX_SEED) if self.seed is None else self.seed,
            max_steps=self.max_steps,
            time_limit_s=self.time_limit_s,
            desktop=size or None,
            pacing=self.pacing,
            accessibility=self.accessibility,
        ).to_wire()


class MessageError(Exception):
    """A message that cannot be understood, with one of OpenEnv's codes."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Translation:
    """The state between OpenEnv's messages and the cluster's frames. Knows no sockets."""

    def __init__(self) -> None:
        self._next_id = 0
        self._deadline_s = DEADLINE_S
        self._state: dict[str, Any] = {"episode_id": None, "step_count": 0}
        self._starting: dict[str, Any] = {}

    def request(self, text: str | bytes) -> bytes | str:
        """The frame that a message becomes, or its answer, a text. Raises `MessageError`: none of OpenEnv's."""
        kind, data = _parse(text)
        match kind:
            case "state":
                return _dump("state", self._state)
            case "reset":
                reset = _reset_data(data)
                self._deadline_s = reset.deadline_s
                self._starting = {"episode_id": reset.episode_id or str(uuid.uuid4())}
                return self._frame("reset", reset.arguments())
            case "step":
                action = {key: value for key, value in data.items() if key != "metadata"}  # of OpenEnv's base class
                return self._frame("step", {"action": action})
        return self.close()

    def close(self) -> bytes:
        """The frame that gives the desktop back."""
        return self._frame("close", {})

    def _frame(self, op: str, args: dict[str, Any]) -> bytes:
        self._next_id += 1
        return frames.encode_request(Request(self._next_id, op, self._deadline_s * 1000, args))

    def answer(self, frame: bytes) -> str | None:
        """The message that a frame of the server becomes; None for the welcome and the last one, which have none."""
        header, body = frames.unpack(frame)
        if "error" in header:
            code, message = header["error"]["code"], header["error"]["message"]
            return error_text(_CODES.get(ErrorCode(code), "EXECUTION_ERROR"), message)
        result = header.get("result", {})
        if "image" not in header:
            return None
        if self._starting and result["step_index"] == 0:
            self._state, self._starting = self._starting, {}
        self._state = {**self._state, **_state(result)}
        return _dump("observation", observation(result, header["image"], body))


def observation(result: dict[str, Any], image: list[Any], png: bytes | memoryview) -> dict[str, Any]:
    """What OpenEnv calls an observation: the screen and texts, a reward, and whether the episode is over."""
    status, score, _, detail = result["evaluation"] or (None, None, None, "")
    values: dict[str, Any] = {
        "screenshot": base64.b64encode(png).decode(),
        "height": image[1],
        "width": image[2],
        "instruction": result["instruction"],
        "action_error": result["action_error"],
        "terminal": result["terminal"],
        "env_fault": result["terminal"] == TerminalState.ENV_ERROR,
        "score": score,
        "evaluation_status": status,
        "evaluation_detail": detail,
    }
    if result["tree"] is not None:
        values["accessibility_tree"] = result["tree"]
    return {
        "observation": values,
        "reward": 0.0 if result["evaluation"] is None else score,
        "done": result["terminal"] is not None,
        "metadata": {**result["info"], "timings": result["timings"]},
    }


def _state(result: dict[str, Any]) -> dict[str, Any]:
    return {
        "step_count": result["step_index"],
        "task_id": result["info"].get("task_id"),
        "seed": result["info"].get("seed"),
        "instruction": result["instruction"],
        "terminal": result["terminal"],
    }


def _parse(text: str | bytes) -> tuple[str, dict[str, Any]]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageError("INVALID_JSON", f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise MessageError("VALIDATION_ERROR", 'a message is an object with "type" and "data"')
    kind, data = message.get("type"), message.get("data", {})
    if kind not in OPERATIONS:
        raise MessageError("UNKNOWN_TYPE", f"unknown message type {kind!r:.60}; known: {', '.join(OPERATIONS)}")
    if not isinstance(data, dict):
        raise MessageError("VALIDATION_ERROR", f"the data of {kind} must be an object")
    return kind, data


def _reset_data(data: dict[str, Any]) -> ResetData:
    try:
        reset = ResetData.model_validate(data)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        known = f"; known: {', '.join(ResetData.model_fields)}" if first["type"] == "extra_forbidden" else ""
        where = ".".join(str(part) for part in first["loc"])
        raise MessageError("VALIDATION_ERROR", f"reset: {where}: {first['msg']}{known}") from None
    if reset.task is not None and reset.task_id is not None:
        raise MessageError("VALIDATION_ERROR", "reset: give one of task_id and task, not both")
    return reset


def error_text(code: str, message: str) -> str:
    """An error as OpenEnv has it."""
    return _dump("error", {"message": message, "code": code})


def _dump(kind: str, data: dict[str, Any]) -> str:
    return json.dumps({"type": kind, "data": data})


class OpenEnvConnection:
    """A connection as the server sees it, with an OpenEnv client at its other end: the client protocol "openenv"."""

    paths = ("/ws", "/openenv/ws")

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._translation = Translation()
        self._waiting: asyncio.Queue[str | bytes | None] = asyncio.Queue(MAX_WAITING)
        self._reader: asyncio.Task[None] | None = None

    def __getattr__(self, name: str) -> Any:
        """All else is the connection's own."""
        return getattr(self._connection, name)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield await self.recv()

    async def recv(self) -> bytes:
        """The next frame of the client: a hello, then requests; when it has gone, the one that ends the session."""
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
            return frames.encode_hello(Hello(("png",), client="OpenEnv"))
        while True:
            text = await self._waiting.get()
            if text is None:
                return self._translation.close()
            try:
                frame = self._translation.request(text)
            except MessageError as error:
                frame = error_text(error.code, str(error))
            except DartGymError as error:  # values that no frame can hold
                frame = error_text("VALIDATION_ERROR", str(error))
            if isinstance(frame, bytes):
                return frame
            await self._send(frame)

    async def _read(self) -> None:
        """Read ahead, so that an answer that the client does not wait for any more is known as such."""
        try:
            async for text in self._connection:
                await self._waiting.put(text)
        except ConnectionClosed:
            pass  # with an error; without one the loop ends
        finally:
            await self._waiting.put(None)

    async def send(self, message: bytes | list[memoryview]) -> None:
        """Send what a frame of the server becomes. Who has gone needs no answer: `recv` says so next."""
        if isinstance(message, list):  # a large one, in fragments
            text = await asyncio.to_thread(lambda: self._translation.answer(b"".join(message)))
        else:
            text = self._translation.answer(message)
        if text is not None:
            await self._send(text)

    async def _send(self, text: str) -> None:
        if not self._waiting.empty():
            return  # the client has timed out and asked for something else
        try:
            await self._connection.send(text)
        except ConnectionClosed:
            return
