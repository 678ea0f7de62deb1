"""Frames: every value comes back as it was, and no bytes do worse than ProtocolError."""

from __future__ import annotations

import struct

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_gym.cluster.wire import frames
from dart_gym.cluster.wire.frames import ErrorCode, Hello, Reply, Request, Welcome
from dart_gym.core.errors import (
    ClusterError,
    ConfigurationError,
    DartGymError,
    DesktopError,
    EpisodeStateError,
    MissingDependencyError,
    ProtocolError,
    ServerDefectError,
    TaskError,
    UnknownTaskError,
)
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
TEXT = st.text(st.characters(exclude_categories=()), max_size=20)  # half a surrogate pair too, as models write it
EVALUATIONS = st.builds(
    Evaluation, st.just(EvaluationStatus.OK), st.floats(0, 1), st.text(max_size=9), st.text(max_size=9)
) | st.builds(
    Evaluation,
    st.sampled_from([EvaluationStatus.EVALUATION_ERROR, EvaluationStatus.ENVIRONMENT_ERROR]),
    st.none(),
    st.text(max_size=9),
    st.text(max_size=9),
)


@st.composite
def images(draw):
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    return np.frombuffer(draw(st.binary(min_size=height * width * 3, max_size=height * width * 3)), np.uint8).reshape(
        height, width, 3
    )


@st.composite
def step_results(draw):
    ended = draw(st.booleans())
    return StepResult(
        Observation(
            draw(images()), draw(st.text(max_size=30)), draw(st.text(max_size=30)), draw(st.none() | st.text())
        ),
        draw(st.sampled_from(TerminalState)) if ended else None,
        draw(EVALUATIONS) if ended else None,
        draw(st.integers(0, 1000)),
        draw(st.dictionaries(st.text(max_size=8), st.floats(0, 100), max_size=4)),
        draw(st.dictionaries(st.text(max_size=8), st.integers(0, 99) | st.text(max_size=9), max_size=4)),
    )


@given(step_results(), st.sampled_from(frames.CODECS))
def test_step_results_cross_the_wire(result, codec):
    reply = frames.decode_reply(frames.encode_reply(frames.step_reply(7, result), codec))
    found = frames.step_result(reply)
    assert reply.id == 7 and found.observation.screenshot.shape == result.observation.screenshot.shape
    if codec in ("raw", "png"):
        assert np.array_equal(found.observation.screenshot, result.observation.screenshot)
    assert found.observation.screenshot.flags.writeable  # owned by the receiver
    for name in ("terminal", "evaluation", "step_index", "timings", "info"):
        assert getattr(found, name) == getattr(result, name)
    for name in ("instruction", "action_error", "accessibility_tree"):
        assert getattr(found.observation, name) == getattr(result.observation, name)


@given(
    st.builds(
        Request,
        st.integers(1, 2**62),
        st.sampled_from(frames.OPERATIONS),
        st.floats(0, 1e6),
        st.dictionaries(st.text(max_size=8), PLAIN, max_size=4),
    )
)
def test_requests_cross_the_wire(request):
    assert frames.decode_request(frames.encode_request(request)) == request


@given(
    st.builds(Hello, st.lists(TEXT, max_size=4).map(tuple), TEXT, st.integers(0, 2**31), TEXT, st.booleans()),
    st.builds(
        Welcome,
        TEXT,
        TEXT,
        st.booleans(),
        st.floats(0, 1e9),
        st.integers(0, 2**31),
        st.dictionaries(st.sampled_from(frames.LIMITS), st.floats(0, 1e12)),
    ),
)
def test_greetings_cross_the_wire(hello, welcome):
    assert frames.decode_hello(frames.encode_hello(hello)) == hello
    assert frames.decode_welcome(frames.encode_welcome(welcome)) == welcome


@pytest.mark.parametrize("size", [0, 1, frames.FRAGMENT_BYTES, frames.FRAGMENT_BYTES + 1, 1 << 20])
def test_fragments_together_are_the_frame(size):
    frame = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sent = frames.fragments(frame)
    assert (sent == frame) if size <= frames.FRAGMENT_BYTES else b"".join(sent) == frame
    assert all(len(part) <= frames.FRAGMENT_BYTES for part in ([sent] if isinstance(sent, bytes) else sent))


@given(st.integers(-1, 2**62), st.sampled_from(ErrorCode), TEXT)
def test_errors_cross_the_wire(number, code, message):
    reply = Reply(number, code=code, message=message)
    assert frames.decode_reply(frames.encode_reply(reply)) == reply


@given(TEXT)
def test_any_text_of_a_model_can_be_sent(text):
    request = Request(1, "step", 1.0, {"action": {"kind": "type", "text": text}})
    assert frames.decode_request(frames.encode_request(request)) == request


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ({"seed": 2**70}, "cannot be sent"),
        ({"seed": np.int64(3)}, "cannot be sent"),
        ({"task": "x" * frames.MAX_REQUEST_BYTES}, "more than the server takes"),
    ],
)
def test_what_cannot_be_sent_is_a_protocol_error(args, match):
    with pytest.raises(ProtocolError, match=match):
        frames.encode_request(Request(1, "reset", 1.0, args))


@pytest.mark.parametrize("depth", [30, 62, 63, 200, 1000])
@pytest.mark.parametrize("key", ["args", "id", "op"])
def test_headers_are_nested_to_a_bounded_depth(depth, key):
    """Deeper ones would make `repr` and `json` fail with an error that is none of the protocol's."""
    value: object = "x"
    for level in range(depth):
        value = {"a": value} if level % 2 == 0 or key == "args" else [value]
    frame = framed({"id": 1, "op": "reset", "deadline_ms": 1, key: value})
    if key == "args" and depth < frames.MAX_DEPTH:
        assert frames.decode_request(frame).args == value
    else:
        with pytest.raises(ProtocolError):
            frames.decode_request(frame)


@pytest.mark.parametrize("value", [b"bytes", msgpack.Timestamp(1), msgpack.ExtType(5, b"x"), {b"key": 1}])
def test_only_plain_values_are_taken(value):
    with pytest.raises(ProtocolError, match="plain values|text"):
        frames.decode_request(framed({"id": 1, "op": "reset", "deadline_ms": 1, "args": {"task": value}}))


@pytest.mark.parametrize(
    "error",
    [
        UnknownTaskError("x"),
        TaskError("x"),
        EpisodeStateError("x"),
        ConfigurationError("x"),
        MissingDependencyError("x"),
        DesktopError("x"),
        ProtocolError("x"),
        ServerDefectError("x"),
        ClusterError("x", ErrorCode.CAPACITY),
    ],
)
def test_the_client_raises_what_the_server_raised(error):
    code = frames.code_of(error)
    reply = frames.decode_reply(frames.encode_reply(Reply(3, code=code, message=str(error))))
    found = frames.exception_for(reply.code, reply.message)
    assert (
        type(found) is type(error)
        and str(found) == "x"
        and getattr(found, "code", None) == getattr(error, "code", None)
    )


def test_a_refused_hello_raises_its_error():
    frame = frames.encode_reply(Reply(-1, code=ErrorCode.SESSION_LOST, message="gone"))
    with pytest.raises(ClusterError, match="gone"):
        frames.decode_welcome(frame)


DECODERS = [
    frames.decode_hello,
    frames.decode_welcome,
    frames.decode_request,
    lambda frame: frames.step_result(frames.decode_reply(frame)),
]


def framed(header: object, body: bytes = b"") -> bytes:
    packed = msgpack.packb(header)
    return struct.pack(">I", len(packed)) + packed + body


HEADERS = st.dictionaries(
    st.sampled_from(
        ["id", "op", "deadline_ms", "args", "protocol", "codecs", "resume", "result", "image", "error", "session"]
    ),
    PLAIN | st.sampled_from(["step", ["raw", 1, 1]]),
)


@settings(max_examples=3 * settings().max_examples)
@given(
    st.binary(max_size=60)
    | st.text(max_size=9)
    | st.builds(lambda data, n: struct.pack(">I", n) + data, st.binary(max_size=60), st.integers(0, 70))
    | st.builds(framed, PLAIN | HEADERS, st.binary(max_size=9)),
    st.sampled_from(DECODERS),
)
def test_any_bytes_give_a_protocol_error_at_worst(frame, decode):
    try:
        decode(frame)
    except ProtocolError:
        pass
    except DartGymError:
        assert decode is frames.decode_welcome  # which raises the error that a well-formed refusal holds


VALID = frames.encode_reply(
    frames.step_reply(
        1,
        StepResult(
            Observation(np.zeros((4, 4, 3), np.uint8), "do", "err"),
            TerminalState.DONE,
            Evaluation(EvaluationStatus.OK, 1.0, "e"),
            3,
            {"total": 1.0},
            {"seed": 1},
        ),
    ),
    "png",
)


@settings(max_examples=3 * settings().max_examples)
@given(st.integers(0, len(VALID) - 1), st.integers(0, 255), st.integers(0, len(VALID)))
def test_a_damaged_frame_gives_a_protocol_error_at_worst(position, value, length):
    damaged = bytearray(VALID)
    damaged[position] = value
    for frame in (bytes(damaged), VALID[:length]):
        try:
            frames.step_result(frames.decode_reply(frame))
        except ProtocolError:
            pass


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ({"id": 1, "op": "exec", "deadline_ms": 1}, "unknown operation"),
        ({"id": 0, "op": "step", "deadline_ms": 1}, "id"),
        ({"id": True, "op": "step", "deadline_ms": 1}, "id"),
        ({"id": 1, "op": "step", "deadline_ms": float("nan")}, "deadline_ms"),
        ({"id": 1, "op": "step", "deadline_ms": 1e12}, "deadline_ms"),
        ({"id": 1, "op": "step", "deadline_ms": 1, "args": []}, "args"),
        ([1], "map"),
    ],
)
def test_malformed_requests_say_what_is_wrong(header, match):
    with pytest.raises(ProtocolError, match=match):
        frames.decode_request(framed(header))


@pytest.mark.parametrize(
    ("image", "body"),
    [
        (["raw", 2, 2], b"short"),
        (["raw", 0, 2], b""),
        (["raw", 1 << 20, 1 << 20], b""),
        (["gif", 1, 1], b"GIF89a"),
        (["png", 1, 1], b"\x89PNG\r\n\x1a\n"),
        ("raw", b""),
    ],
)
def test_malformed_images_are_refused(image, body):
    with pytest.raises(ProtocolError):
        frames.decode_reply(framed({"id": 1, "result": {}, "image": image}, body))
