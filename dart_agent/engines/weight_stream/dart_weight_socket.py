"""Weights from a trainer's memory over a Unix socket: the protocol, and the side that reads. Needs no torch.

A location is `memory+unix:///path.sock#version`. A reader sends one JSON line, `{"version", "want"}`, and gets:

    want "weights" -> {"tensors": [[name, dtype, shape], ...], "bucket_bytes"}, the buckets, facts
    want "facts"   -> facts: {"fingerprint"}, as soon as the trainer has taken all weights of the version

A line may be `{"error"}` instead. The buckets are the tensors' bytes one after the other, cut every `bucket_bytes`; the
CRC-32 of a bucket follows it.

Invariants:
    - A tensor larger than a bucket is split, small ones share a bucket.
    - What ends before the facts is no version: the reader raises, and what it has read is thrown away. A trainer that
      dies amid a transfer, or whose weights are not finite, therefore changes no engine.
    - Only processes of the same user talk to each other, as the kernel says who they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

SCHEME = "memory+unix://"
SILENCE_S = 600.0
"""Longest wait for the next bytes; a trainer gathers a tensor of its ranks meanwhile, or makes the fingerprint."""
LINE_BYTES = 1 << 26
CHECK = struct.Struct("<I")
_PEER = struct.Struct("3i")  # process, user, group


class NotReadError(Exception):
    """A version did not arrive whole from a trainer's memory."""


@dataclass(frozen=True, slots=True)
class TensorShape:
    """A tensor that will be sent; `dtype` as torch names it, such as "bfloat16"."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def cut(sizes: Sequence[int], bucket_bytes: int) -> Iterator[list[tuple[int, int, int]]]:
    """The buckets of tensors of these sizes: parts (tensor, begin, end) in bytes. Pure."""
    if bucket_bytes < 1:
        raise ValueError(f"buckets of {bucket_bytes} bytes hold nothing")
    bucket: list[tuple[int, int, int]] = []
    room = bucket_bytes
    for index, size in enumerate(sizes):
        begin = 0
        while begin < size:
            end = min(size, begin + room)
            bucket.append((index, begin, end))
            room -= end - begin
            begin = end
            if room == 0:
                yield bucket
                bucket, room = [], bucket_bytes
    if bucket:
        yield bucket


def is_same_user(connection: socket.socket) -> bool:
    """Return whether the other side of a Unix socket is a process of this user, or of root."""
    _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return user in (os.getuid(), 0)


def read_weights(
    location: str,
    allocate: Callable[[list[TensorShape]], Sequence[memoryview]],
    *,
    silence_s: float = SILENCE_S,
) -> None:
    """Read all tensors of a version into memory that `allocate` returns, as bytes.

    Args:
        location: of the version.
        allocate: is told the tensors in order, and returns one writable view of each; its `ValueError` says that the
            tensors are not those of the reader's model.
        silence_s: longest wait for the next bytes.

    Raises:
        NotReadError: if the version did not arrive whole.
    """
    with _asking(location, "weights", silence_s) as file:
        header = _line(file)
        shapes = [TensorShape(name, dtype, tuple(shape)) for name, dtype, shape in header["tensors"]]
        views = allocate(shapes)
        for bucket in cut([view.nbytes for view in views], int(header["bucket_bytes"])):
            check = 0
            for index, begin, end in bucket:
                part = views[index][begin:end]
                _fill(file, part)
                check = zlib.crc32(part, check)
            if check != CHECK.unpack(_exactly(file, CHECK.size))[0]:
                raise ValueError("a bucket is not what was sent (its CRC-32 differs)")
        _line(file)


def read_facts(location: str, *, silence_s: float = SILENCE_S) -> dict[str, Any]:
    """Return the facts of a version, once the trainer has taken all of its weights. Raises `NotReadError`."""
    with _asking(location, "facts", silence_s) as file:
        return _line(file)


@contextlib.contextmanager
def _asking(location: str, want: str, silence_s: float) -> Iterator[BufferedReader]:
    """Ask a trainer, and read its answer in the block, whose errors become `NotReadError`."""
    address, _, version = location.rpartition("#")
    where = f"version {version} in the memory at {address}"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(silence_s)
            connection.connect(address.removeprefix(SCHEME))
            if not is_same_user(connection):
                raise PermissionError("the socket is another user's")
            connection.sendall(json.dumps({"version": int(version), "want": want}).encode() + b"\n")
            with connection.makefile("rb") as file:
                yield file
    except TimeoutError:
        raise NotReadError(f"{where} did not arrive: nothing came for {silence_s:g} s") from None
    except EOFError:
        raise NotReadError(f"{where} did not arrive whole: the trainer gave it up, or has ended") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotReadError(f"{where} cannot be used: {error}") from error


def _line(file: BufferedReader) -> dict[str, Any]:
    line = file.readline(LINE_BYTES)
    if not line.endswith(b"\n"):
        raise EOFError
    found = json.loads(line)
    if not isinstance(found, dict) or "error" in found:
        raise ValueError(found["error"] if isinstance(found, dict) else "no JSON object")
    return found


def _fill(file: BufferedReader, view: memoryview) -> None:
    """Read into all of a view."""
    done = 0
    while done < view.nbytes:
        count = file.readinto(view[done:])
        if not count:
            raise EOFError
        done += count


def _exactly(file: BufferedReader, count: int) -> bytes:
    found = file.read(count)
    if len(found) < count:
        raise EOFError
    return found
