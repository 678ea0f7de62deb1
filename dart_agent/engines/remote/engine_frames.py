"""Frames between a remote engine and its server: one msgpack map per binary websocket message.

Requests are `{"id", "op", ...}` with op "generate", "update_weights" or "info"; replies are `{"id", "result"}` or
`{"id", "error", "kind"}`, the name of an `EngineError`. Ids are chosen by the client; replies come in any order. Token
ids and log-probabilities cross as raw little-endian arrays, images as raw pixels: on one machine nothing is gained by
compressing them.
"""

import dataclasses
from typing import Any

import msgpack
import numpy as np

from dart_agent.engines.base import engine_replies
from dart_agent.engines.base.engine import (
    BadResponse,
    EngineBusy,
    EngineError,
    EngineInfo,
    EngineMismatch,
    EngineTimeout,
    Generation,
    Prompt,
    RequestRefused,
    Sampling,
    UpdateNotBegun,
)

MAX_FRAME = 256 * 2**20
TOKEN_ENV = "DART_ENGINE_TOKEN"


class FrameError(ValueError):
    """A frame that does not follow the protocol."""


def pack(message: dict[str, Any]) -> bytes:
    """One frame."""
    return msgpack.packb(message)


def unpack(frame: bytes | str) -> dict[str, Any]:
    """The map in a frame. Raises `FrameError`."""
    if isinstance(frame, str):
        raise FrameError("expected a binary frame, got text")
    try:
        message = msgpack.unpackb(frame)
    except (ValueError, msgpack.UnpackException) as error:
        raise FrameError(f"not msgpack: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("id"), int):
        raise FrameError("expected a map with an integer id")
    return message


def prompt_fields(prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
    """A generate request without its id."""
    images = [(*image.shape[:2], np.ascontiguousarray(image).data) for image in prompt.images]
    return {
        "op": "generate",
        "tokens": np.asarray(prompt.token_ids, "<i4").tobytes(),
        "images": images,
        "sampling": {field: getattr(sampling, field) for field in _SAMPLING},
    }


def read_prompt(message: dict[str, Any]) -> tuple[Prompt, Sampling]:
    """The request that `prompt_fields` wrote. Raises `FrameError`."""
    try:
        images = tuple(
            np.frombuffer(pixels, np.uint8).reshape(height, width, 3) for height, width, pixels in message["images"]
        )
        tokens = tuple(np.frombuffer(message["tokens"], "<i4").tolist())
        fields = dict(message["sampling"])
        for name in ("stop_ids", "suppressed_ids", "given_ids"):
            fields[name] = tuple(fields[name])
        return Prompt(tokens, images), Sampling(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise FrameError(f"bad generate request: {type(error).__name__}: {error}") from None


def generation_fields(generation: Generation) -> dict[str, Any]:
    """A generation as plain values."""
    fields = {field: getattr(generation, field) for field in _GENERATION}
    fields["response_ids"] = np.asarray(generation.response_ids, "<i4").tobytes()
    fields["logprobs"] = np.asarray(generation.logprobs, "<f8").tobytes()
    return fields


def read_generation(fields: Any, sampling: Sampling) -> Generation:
    """The generation that `generation_fields` wrote, checked. Raises `BadResponse`."""
    try:
        generation = Generation(
            text=fields["text"],
            response_ids=tuple(np.frombuffer(fields["response_ids"], "<i4").tolist()),
            logprobs=tuple(np.frombuffer(fields["logprobs"], "<f8").tolist()),
            version=fields["version"],
            finish_reason=fields["finish_reason"],
            engine=fields["engine"],
            seconds=fields["seconds"],
            entropy=fields["entropy"],
            routing=fields["routing"],
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadResponse(f"the engine's answer cannot be read ({type(error).__name__}: {error})") from None
    return engine_replies.checked(generation, sampling)


def info_fields(info: EngineInfo) -> dict[str, Any]:
    """An engine's state as plain values; `engine_replies.engine_info` is the way back."""
    return dataclasses.asdict(info)


def error_fields(error: Exception) -> dict[str, str]:
    """Return what is left of an error on the wire: its words and its type."""
    return {"error": str(error), "kind": type(error).__name__}


def read_error(fields: dict[str, Any]) -> EngineError:
    """The error that `error_fields` wrote; of unknown types (newer servers') the common one."""
    return _ERRORS.get(str(fields.get("kind")), EngineError)(str(fields["error"]))


_ERRORS = {
    kind.__name__: kind
    for kind in (EngineBusy, EngineTimeout, RequestRefused, EngineMismatch, BadResponse, UpdateNotBegun)
}
_SAMPLING = tuple(field.name for field in dataclasses.fields(Sampling))
_GENERATION = tuple(field.name for field in dataclasses.fields(Generation))
