"""The frames between a client and the environment cluster: values to bytes and back, nothing about sockets.

One websocket carries one session. The client's first frame is a `Hello`, answered by a `Welcome` or an error; then
each `Request` gets one `Reply` with the same id. Every frame is binary: a big-endian u32 with the length of the
header, the header in msgpack (a map), and the bytes of an image, if there is one (docs/reference/protocol.md).

Invariants:
    - Request ids grow within a session, also over reconnects. A request that is sent again with the id of the last
      one gets the stored reply and executes nothing twice.
    - Decoders raise `ProtocolError` for any bytes that they do not understand, and nothing else; encoders raise it for
      values that cannot be sent.
    - Only plain values cross the wire (those of JSON, to a bounded depth): actions as `action_to_dict` makes them,
      never code.
"""

import dataclasses
import math
import struct
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from dart_gym.cluster.wire.error_codes import CLOSE_CODES as CLOSE_CODES
from dart_gym.cluster.wire.error_codes import SESSION_OVER as SESSION_OVER
from dart_gym.cluster.wire.error_codes import ErrorCode as ErrorCode
from dart_gym.cluster.wire.error_codes import code_of as code_of
from dart_gym.cluster.wire.error_codes import exception_for as exception_for
from dart_gym.cluster.wire.image_codecs import CODECS as CODECS
from dart_gym.cluster.wire.image_codecs import decode_image, encode_image
from dart_gym.cluster.wire.shared_frames import LEAST_BYTES, SHARED, FrameReceiver, FrameSender
from dart_gym.core.errors import ProtocolError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState

VERSION = 1
MAX_REQUEST_BYTES = 4 << 20
MAX_REPLY_BYTES = 256 << 20
MAX_DEADLINE_MS = 3_600_000
FRAGMENT_BYTES = 256 << 10
MAX_DEPTH = 64  # of nested lists and maps in a header
OPERATIONS = ("acquire", "reset", "step", "finish", "oracle", "close", "status", "lacking")
LIMITS = ("request_bytes", "idle_s", "lifetime_s", "extension_s")
"""Of a welcome: size of a request; a session's idle and total time; by how much an evaluation may move its deadline."""
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a connection.

    Attributes:
        codecs: image codecs that the client takes, best first.
        resume: token of the session to resume; "" for a new one.
        take_over: with `resume`: cut the session's connection, even one that is alive.
    """

    codecs: tuple[str, ...] = ("png",)
    resume: str = ""
    protocol: int = VERSION
    client: str = ""
    take_over: bool = False


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to `Hello`.

    Attributes:
        resumed: whether it is the session that the client asked to resume.
        grace_s: how long the session outlives a lost connection.
        limits: what the server allows, those of `LIMITS` that it sets.
    """

    session: str
    codec: str
    resumed: bool = False
    grace_s: float = 0.0
    protocol: int = VERSION
    limits: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One operation. `args` are plain values, looked at by the server."""

    id: int
    op: str
    deadline_ms: float
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to a request: `result`, plain values and of a step the image, or `error` with a code."""

    id: int
    result: dict[str, Any] = field(default_factory=dict)
    code: ErrorCode | None = None
    message: str = ""
    image: NDArray[np.uint8] | None = None


# --- frames


def _pack(header: dict[str, Any], body: bytes | memoryview = b"") -> bytes:
    try:
        packed = msgpack.packb(header, unicode_errors="surrogatepass")  # a model may write half of a pair
    except (ValueError, TypeError, OverflowError) as error:
        raise ProtocolError(f"cannot be sent: {error}") from None
    return b"".join((_LENGTH.pack(len(packed)), packed, body))


def unpack(frame: bytes | str) -> tuple[dict[str, Any], memoryview]:
    """Split a frame into its header and its body.

    Raises:
        ProtocolError: if it is not a frame.
    """
    if isinstance(frame, str):
        raise ProtocolError("frames are binary, got a text frame")
    if len(frame) < _LENGTH.size:
        raise ProtocolError(f"a frame has at least {_LENGTH.size} bytes, got {len(frame)}")
    end = _LENGTH.size + _LENGTH.unpack_from(frame)[0]
    if end > len(frame):
        raise ProtocolError(f"the header should end at byte {end} of a frame of {len(frame)}")
    view = memoryview(frame)
    try:
        header = msgpack.unpackb(view[_LENGTH.size : end], unicode_errors="surrogatepass")
    except (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"the header is not msgpack: {error}") from None
    if not isinstance(header, dict):
        raise ProtocolError(f"the header must be a map, got {type(header).__name__}")
    _check_plain(header)
    return header, view[end:]


def _check_plain(header: dict[str, Any]) -> None:
    """Refuse what JSON does not have, and depths at which recursion (of `repr`, of `json`) would fail."""
    level: list[Any] = [header]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for container in level:
            if isinstance(container, dict):
                if not all(type(key) is str for key in container):
                    raise ProtocolError("the keys of maps must be text")
                container = container.values()
            for value in container:
                kind = type(value)
                if kind is dict or kind is list:
                    inner.append(value)
                elif value is not None and kind not in _PLAIN:
                    raise ProtocolError(f"a header holds plain values, not {kind.__name__}")
        if not inner:
            return
        level = inner
    raise ProtocolError(f"a header is nested at most {MAX_DEPTH} deep")


_PLAIN = frozenset({str, int, float, bool})


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
    return _pack(dataclasses.asdict(hello))


def decode_hello(frame: bytes | str) -> Hello:
    """A hello from its bytes; raises `ProtocolError`."""
    header, _ = unpack(frame)
    codecs = _get(header, "codecs", list)
    if not all(isinstance(codec, str) for codec in codecs):
        raise ProtocolError("codecs must be names")
    return Hello(
        codecs=tuple(codecs),
        resume=_get(header, "resume", str, ""),
        protocol=_integer(header, "protocol", 0, 1 << 31),
        client=_get(header, "client", str, "")[:200],
        take_over=_get(header, "take_over", bool, False),
    )


def encode_welcome(welcome: Welcome) -> bytes:
    """Bytes of a welcome."""
    return _pack({"id": 0, **dataclasses.asdict(welcome)})


def decode_welcome(frame: bytes | str) -> Welcome:
    """Decode a welcome.

    Raises:
        ProtocolError: if the bytes are not a welcome.
        DartGymError: if the server has refused the client.
    """
    header, _ = unpack(frame)
    if "error" in header:
        reply = decode_reply(frame)
        raise exception_for(reply.code or ErrorCode.INTERNAL, reply.message)
    limits = _get(header, "limits", dict, {})
    return Welcome(
        session=_get(header, "session", str),
        codec=_get(header, "codec", str),
        resumed=_get(header, "resumed", bool, False),
        grace_s=_number(header, "grace_s", 0, 1e9, 0.0),
        protocol=_integer(header, "protocol", 0, 1 << 31),
        limits={name: _number(limits, name, 0, 1e15) for name in LIMITS if name in limits},
    )


def encode_request(request: Request) -> bytes:
    """Bytes of a request; raises `ProtocolError` if it cannot be sent."""
    frame = _pack({"id": request.id, "op": request.op, "deadline_ms": request.deadline_ms, "args": request.args})
    if len(frame) > MAX_REQUEST_BYTES:
        raise ProtocolError(
            f"the request has {len(frame)} bytes, more than the server takes ({MAX_REQUEST_BYTES}): "
            "large files belong behind a URL or on the server's machine"
        )
    return frame


def decode_request(frame: bytes | str) -> Request:
    """A request from its bytes; raises `ProtocolError`."""
    header, _ = unpack(frame)
    op = _get(header, "op", str)
    if op not in OPERATIONS:
        raise ProtocolError(f"unknown operation {op!r:.60}; known: {', '.join(OPERATIONS)}")
    return Request(
        id=_integer(header, "id", 1, 1 << 62),
        op=op,
        deadline_ms=_number(header, "deadline_ms", 0, MAX_DEADLINE_MS),
        args=_get(header, "args", dict, {}),
    )


def encode_reply(reply: Reply, codec: str = "raw", sender: FrameSender | None = None) -> bytes:
    """Encode a reply; encoding its image may take long (`images.is_slow`).

    Raises:
        ProtocolError: if the reply is too large.
    """
    if reply.code is not None:
        return _pack({"id": reply.id, "error": {"code": str(reply.code), "message": reply.message}})
    header: dict[str, Any] = {"id": reply.id, "result": reply.result}
    body: bytes | memoryview = b""
    if reply.image is not None:
        if codec != SHARED:
            header["image"], body = encode_image(reply.image, codec)
        elif sender is not None and reply.image.nbytes >= LEAST_BYTES:
            header["image"] = sender.put(reply.image)
        else:
            header["image"], body = encode_image(reply.image, "raw")
    frame = _pack(header, body)
    if len(frame) > MAX_REPLY_BYTES:
        raise ProtocolError(f"the reply has {len(frame)} bytes, more than the {MAX_REPLY_BYTES} that a client takes")
    return frame


def fragments(frame: bytes) -> bytes | list[memoryview]:
    """Return what to give to a websocket's `send` for a frame: a large one in fragments of one message.

    They save most of the copies, on both sides, and let others have their turn in between: a 1080p screen takes a
    third of the time. The other side's library puts them together.
    """
    if len(frame) <= FRAGMENT_BYTES:
        return frame
    view = memoryview(frame)
    return [view[start : start + FRAGMENT_BYTES] for start in range(0, len(view), FRAGMENT_BYTES)]


def decode_reply(frame: bytes | str, receiver: FrameReceiver | None = None) -> Reply:
    """Decode a reply; `receiver` has the images of the codec "shared".

    Raises:
        ProtocolError: if the bytes are not a reply.
    """
    header, body = unpack(frame)
    request_id = _integer(header, "id", -1, 1 << 62)
    if "error" in header:
        error = _get(header, "error", dict)
        try:
            code = ErrorCode(_get(error, "code", str))
        except ValueError:
            raise ProtocolError(f"unknown error code {error['code']!r:.60}") from None
        return Reply(request_id, code=code, message=_get(error, "message", str))
    image = None
    if "image" in header:
        description = _get(header, "image", list)
        shared = receiver is not None and description[:1] == [SHARED]
        image = receiver.get(description) if receiver and shared else decode_image(description, body)
    return Reply(request_id, _get(header, "result", dict), image=image)


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
