"""Messages between a server and the keeper of a desktop: a header of plain values, and a body of bytes.

Invariants:
    - Lengths are looked at before anything is read: a header has at most `MAX_HEADER` bytes, a body as many as the
      reader asked for. What is longer, or no header, is `MessageError`: the other side is not to be trusted any more.
    - Errors cross by name, of a closed set; an unknown one is a `DesktopError`.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import msgpack

from dart_gym.core.errors import (
    ConfigurationError,
    DesktopError,
    DesktopKilledError,
    DesktopStateError,
    DesktopTimeoutError,
    MissingDependencyError,
    MissingProgramError,
    StuckProgramError,
)
from dart_gym.desktops.base.desktop import ActionError

MAX_HEADER = 1 << 20
MAX_TREE = 64 << 20
"""Bytes of an accessibility tree."""
MAX_INPUT = 1 << 30
"""Bytes that a server may send with a request: it is trusted, but for its size."""
PIECE = 4 << 20
"""Bytes of a file that are written in one message."""
STREAM_BUFFER = 1 << 20

_LENGTHS = struct.Struct("<IQ")
_MAX_WORDS = 8000
_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        *(ActionError, ConfigurationError, MissingDependencyError, MissingProgramError),
        *(DesktopError, DesktopKilledError, DesktopTimeoutError, DesktopStateError, StuckProgramError, ValueError),
        *(FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError),
        *(TimeoutError, OSError),
    )
}


class MessageError(Exception):
    """What came is no message of the other side."""


def encode_message(header: dict[str, Any], body_length: int = 0) -> bytes:
    """Return what precedes a body on the way; `header` holds plain values."""
    packed: bytes = msgpack.packb(header, unicode_errors="surrogatepass")
    return _LENGTHS.pack(len(packed), body_length) + packed


async def read_message(
    reader: asyncio.StreamReader, body_limit: Callable[[dict[str, Any]], int]
) -> tuple[dict[str, Any], bytes]:
    """Read the next message.

    Raises:
        MessageError: if the bytes are not a message.
        asyncio.IncompleteReadError: if the other side has closed.
    """
    head, length = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    if head > MAX_HEADER:
        raise MessageError(f"a header of {head} bytes")
    header = decode_header(await reader.readexactly(head))
    if length > body_limit(header):
        raise MessageError(f"a body of {length} bytes")
    return header, await reader.readexactly(length) if length else b""


def decode_header(data: bytes) -> dict[str, Any]:
    """A header from its bytes; raises `MessageError`."""
    try:
        header = msgpack.unpackb(data, unicode_errors="surrogatepass")
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise MessageError(f"a header that is no msgpack: {error}") from None
    if not isinstance(header, dict):
        raise MessageError(f"a header that is no map but {type(header).__name__}")
    return header


def field(header: dict[str, Any], name: str, kind: type[Any]) -> Any:
    """A field of a header; raises `MessageError` when it is missing or of another type."""
    value = header.get(name)
    if type(value) is not kind:
        raise MessageError(f"the field {name!r} is not of type {kind.__name__}")
    return value


def encode_error(error: Exception) -> dict[str, str]:
    """An error as plain values."""
    name = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS), "")
    text = str(error) if name else f"the desktop's keeper failed: {type(error).__name__}: {error}"
    if len(text) > _MAX_WORDS:
        text = f"{text[: _MAX_WORDS // 2]} ... {text[-_MAX_WORDS // 2 :]}"
    return {"kind": name or "DesktopError", "message": text}


def decode_error(values: Any) -> Exception:
    """The error that plain values stand for; raises `MessageError`."""
    if not isinstance(values, dict):
        raise MessageError("an error that is no map")
    kind = _KINDS.get(field(values, "kind", str), DesktopError)
    return kind(field(values, "message", str)[: 2 * _MAX_WORDS])
