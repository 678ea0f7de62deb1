"""The frames between a client and the environment cluster: values to bytes and back, nothing about sockets.

One websocket carries one session. The client's first frame is a `Hello`, answered by a `Welcome` or an error; then
each `Request` gets one `Reply` with the same id. Every frame is binary: a big-endian u32 with the length of the
header, the header in msgpack (a map), and the bytes of an image, if there is one.

Invariants:
    - Request ids grow within a session, also over reconnects. A request that is sent again with the id of the last
      one gets the stored reply and executes nothing twice.
    - Decoders raise `ProtocolError` for any bytes that they do not understand, and nothing else.
    - Only plain values cross the wire: actions as `action_to_dict` makes them, never code.
"""

from __future__ import annotations

import io
import math
import struct
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_gym.errors import (
    ClusterError,
    ConfigurationError,
    DartGymError,
    DesktopError,
    EpisodeStateError,
    MissingDependencyError,
    ProtocolError,
    TaskError,
    UnknownTaskError,
)
from dart_gym.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState

VERSION = 1
MAX_REQUEST_BYTES = 4 << 20
MAX_REPLY_BYTES = 256 << 20
MAX_DEADLINE_MS = 3_600_000
MAX_SCREEN_SIDE = 16_384
CODECS = ("raw", "png")
OPERATIONS = ("lease", "reset", "step", "finish", "oracle", "close", "status")
_LENGTH = struct.Struct(">I")


class ErrorCode(StrEnum):
    """Why the cluster refused or failed. Closed: both sides know all of them."""

    PROTOCOL = "protocol"  # a frame that does not follow the protocol, or another version of it
    AUTH = "auth"  # no or a wrong token
    CAPACITY = "capacity"  # no desktop was free within the deadline
    TIMEOUT = "timeout"  # the operation was not done within its deadline
    STATE = "state"  # no episode is running
    BAD_ACTION = "bad_action"  # malformed action
    UNKNOWN_TASK = "unknown_task"
    TASK = "task"  # malformed task, or no oracle for it
    CONFIGURATION = "configuration"
    DEPENDENCY = "dependency"  # the server's machine lacks a program
    DESKTOP = "desktop"
    SESSION_LOST = "session_lost"  # the session to resume is gone
    IDLE = "idle"  # the lease ended because nothing was asked for too long
    SHUTDOWN = "shutdown"  # the server stops
    UNREACHABLE = "unreachable"  # found by the client: nobody answers
    INTERNAL = "internal"  # a defect of the server; its log has the traceback


_EXCEPTIONS: tuple[tuple[ErrorCode, type[DartGymError]], ...] = (
    (ErrorCode.STATE, EpisodeStateError),
    (ErrorCode.UNKNOWN_TASK, UnknownTaskError),  # before its base
    (ErrorCode.TASK, TaskError),
    (ErrorCode.CONFIGURATION, ConfigurationError),
    (ErrorCode.DEPENDENCY, MissingDependencyError),
    (ErrorCode.DESKTOP, DesktopError),
    (ErrorCode.PROTOCOL, ProtocolError),
)


def code_of(error: BaseException) -> ErrorCode:
    """The code under which an exception crosses the wire."""
    if isinstance(error, ClusterError):
        return ErrorCode(error.code)
    if isinstance(error, TimeoutError):
        return ErrorCode.TIMEOUT
    return next((code for code, cls in _EXCEPTIONS if isinstance(error, cls)), ErrorCode.INTERNAL)


def exception_for(code: ErrorCode, message: str) -> DartGymError:
    """The exception that the client raises for an error reply: the class that the server's side raised, if known."""
    cls = dict(_EXCEPTIONS).get(code)
    return cls(message) if cls else ClusterError(message, code)


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a connection.

    Attributes:
        codecs: image codecs that the client takes, best first.
        resume: token of the session to go on with; "" for a new one.
        version: of the protocol.
        client: who it is, for logs and the status.
    """

    codecs: tuple[str, ...] = ("png",)
    resume: str = ""
    version: int = VERSION
    client: str = ""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to `Hello`: the session's token (a secret: it resumes the session) and the codec of its images."""

    session: str
    codec: str
    resumed: bool = False
    grace_s: float = 0.0
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Request:
    """One operation. `args` are plain values, looked at by the server."""

    id: int
    op: str
    deadline_ms: float
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to a request: `result`, or `error` with a code.

    Attributes:
        id: of the request; -1 for an error that answers none (a broken frame, the server's farewell).
        result: plain values; of a step also the image.
        code: None if all went well.
        message: of the error.
    """

    id: int
    result: dict[str, Any] = field(default_factory=dict)
    code: ErrorCode | None = None
    message: str = ""
    image: NDArray[np.uint8] | None = None


# --- frames


def _pack(header: dict[str, Any], body: bytes | memoryview = b"") -> bytes:
    packed = msgpack.packb(header)
    return b"".join((_LENGTH.pack(len(packed)), packed, body))


def _unpack(frame: bytes | str) -> tuple[dict[str, Any], memoryview]:
    if isinstance(frame, str):
        raise ProtocolError("frames are binary, got a text frame")
    if len(frame) < _LENGTH.size:
        raise ProtocolError(f"a frame has at least {_LENGTH.size} bytes, got {len(frame)}")
    end = _LENGTH.size + _LENGTH.unpack_from(frame)[0]
    if end > len(frame):
        raise ProtocolError(f"the header should end at byte {end} of a frame of {len(frame)}")
    view = memoryview(frame)
    try:
        header = msgpack.unpackb(view[_LENGTH.size : end])
    except (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"the header is not msgpack: {error}") from None
    if not isinstance(header, dict):
        raise ProtocolError(f"the header must be a map, got {type(header).__name__}")
    return header, view[end:]


def _get(header: dict[str, Any], key: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
    value = header.get(key, default)
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise ProtocolError(f"bad or missing field {key!r}: {value!r:.100}")
    return value


def _number(header: dict[str, Any], key: str, low: float, high: float, default: Any = None) -> float:
    value = _get(header, key, (int, float), default)
    if not (math.isfinite(value) and low <= value <= high):
        raise ProtocolError(f"field {key!r} must be in [{low:g}, {high:g}], got {value!r:.40}")
    return value


def _integer(header: dict[str, Any], key: str, low: int, high: int, default: Any = None) -> int:
    value = _get(header, key, int, default)
    if not low <= value <= high:
        raise ProtocolError(f"field {key!r} must be in [{low}, {high}], got {value!r:.40}")
    return value


def encode_hello(hello: Hello) -> bytes:
    """Bytes of a hello."""
    return _pack(
        {"protocol": hello.version, "codecs": list(hello.codecs), "resume": hello.resume, "client": hello.client}
    )


def decode_hello(frame: bytes | str) -> Hello:
    """A hello from its bytes; raises `ProtocolError`."""
    header, _ = _unpack(frame)
    codecs = _get(header, "codecs", list)
    if not all(isinstance(codec, str) for codec in codecs):
        raise ProtocolError("codecs must be names")
    return Hello(
        codecs=tuple(codecs),
        resume=_get(header, "resume", str, ""),
        version=_integer(header, "protocol", 0, 1 << 31),
        client=_get(header, "client", str, "")[:200],
    )


def encode_welcome(welcome: Welcome) -> bytes:
    """Bytes of a welcome."""
    return _pack(
        {
            "id": 0,
            "protocol": welcome.version,
            "session": welcome.session,
            "codec": welcome.codec,
            "resumed": welcome.resumed,
            "grace_s": welcome.grace_s,
        }
    )


def decode_welcome(frame: bytes | str) -> Welcome:
    """A welcome from its bytes.

    Raises:
        ProtocolError: not a welcome.
        DartGymError: the server refused; the class follows from the error's code.
    """
    header, _ = _unpack(frame)
    if "error" in header:
        reply = decode_reply(frame)
        raise exception_for(reply.code or ErrorCode.INTERNAL, reply.message)
    return Welcome(
        session=_get(header, "session", str),
        codec=_get(header, "codec", str),
        resumed=_get(header, "resumed", bool, False),
        grace_s=_number(header, "grace_s", 0, 1e9, 0.0),
        version=_integer(header, "protocol", 0, 1 << 31),
    )


def encode_request(request: Request) -> bytes:
    """Bytes of a request."""
    return _pack({"id": request.id, "op": request.op, "deadline_ms": request.deadline_ms, "args": request.args})


def decode_request(frame: bytes | str) -> Request:
    """A request from its bytes; raises `ProtocolError`."""
    header, _ = _unpack(frame)
    op = _get(header, "op", str)
    if op not in OPERATIONS:
        raise ProtocolError(f"unknown operation {op!r:.60}; known: {', '.join(OPERATIONS)}")
    return Request(
        id=_integer(header, "id", 1, 1 << 62),
        op=op,
        deadline_ms=_number(header, "deadline_ms", 0, MAX_DEADLINE_MS),
        args=_get(header, "args", dict, {}),
    )


def encode_reply(reply: Reply, codec: str = "raw") -> bytes:
    """Bytes of a reply, its image in the given codec. A 1080p PNG takes tens of milliseconds: mind the event loop."""
    if reply.code is not None:
        return _pack({"id": reply.id, "error": {"code": str(reply.code), "message": reply.message}})
    if reply.image is None:
        return _pack({"id": reply.id, "result": reply.result})
    image = np.ascontiguousarray(reply.image)
    body = image.data.cast("B") if codec == "raw" else _to_png(image)
    return _pack({"id": reply.id, "result": reply.result, "image": [codec, *image.shape[:2]]}, body)


def decode_reply(frame: bytes | str) -> Reply:
    """A reply from its bytes; raises `ProtocolError`."""
    header, body = _unpack(frame)
    request_id = _integer(header, "id", -1, 1 << 62)
    if "error" in header:
        error = _get(header, "error", dict)
        try:
            code = ErrorCode(_get(error, "code", str))
        except ValueError:
            raise ProtocolError(f"unknown error code {error['code']!r:.60}") from None
        return Reply(request_id, code=code, message=_get(error, "message", str))
    image = _decode_image(_get(header, "image", list), body) if "image" in header else None
    return Reply(request_id, _get(header, "result", dict), image=image)


# --- images


def _to_png(image: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _decode_image(description: list[Any], body: memoryview) -> NDArray[np.uint8]:
    if len(description) != 3 or description[0] not in CODECS:
        raise ProtocolError(f"an image is described by [codec, height, width], got {description!r:.100}")
    codec, height, width = description
    for side in (height, width):
        if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= MAX_SCREEN_SIDE:
            raise ProtocolError(f"bad image size {description[1:]!r:.60}")
    if codec == "raw":
        if len(body) != height * width * 3:
            raise ProtocolError(f"a raw {width}x{height} image has {height * width * 3} bytes, got {len(body)}")
        return np.frombuffer(body, np.uint8).reshape(height, width, 3).copy()
    return _from_png(body, height, width)


def _from_png(body: memoryview, height: int, width: int) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(body), formats=["PNG"]) as image:
            if image.size != (width, height) or image.mode != "RGB":
                raise ProtocolError(f"the image is {image.size}, {image.mode}, not {(width, height)}, RGB")
            return np.array(image)
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        raise ProtocolError(f"the image is not PNG: {error}") from None


# --- step results


def step_reply(request_id: int, result: StepResult) -> Reply:
    """The reply that carries a step result."""
    observation, evaluation = result.observation, result.evaluation
    values = {
        "instruction": observation.instruction,
        "action_error": observation.action_error,
        "tree": observation.accessibility_tree,
        "terminal": result.terminal,
        "evaluation": evaluation and [evaluation.status, evaluation.score, evaluation.evaluator, evaluation.detail],
        "step_index": result.step_index,
        "timings": result.timings,
        "info": result.info,
    }
    return Reply(request_id, values, image=observation.screenshot)


def step_result(reply: Reply) -> StepResult:
    """The step result that a reply carries; raises `ProtocolError`."""
    values = reply.result
    if reply.image is None:
        raise ProtocolError("a step result has an image")
    tree, terminal = values.get("tree"), values.get("terminal")
    if tree is not None and not isinstance(tree, str):
        raise ProtocolError(f"bad field 'tree': {tree!r:.100}")
    timings = _get(values, "timings", dict)
    if not all(isinstance(seconds, (int, float)) for seconds in timings.values()):
        raise ProtocolError("timings must be numbers")
    observation = Observation(reply.image, _get(values, "instruction", str), _get(values, "action_error", str), tree)
    try:
        return StepResult(
            observation=observation,
            terminal=None if terminal is None else TerminalState(terminal),
            evaluation=_evaluation(values.get("evaluation")),
            step_index=_integer(values, "step_index", 0, 1 << 62),
            timings=timings,
            info=_get(values, "info", dict),
        )
    except ValueError as error:
        raise ProtocolError(f"not a step result: {error}") from None


def _evaluation(values: Any) -> Evaluation | None:
    if values is None:
        return None
    match values:
        case [str(status), float() | int() | None as score, str(evaluator), str(detail)]:
            return Evaluation(EvaluationStatus(status), score, evaluator, detail)
    raise ProtocolError(f"bad evaluation {values!r:.100}")
