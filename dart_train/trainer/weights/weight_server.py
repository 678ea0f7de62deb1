"""Serves the newest weights from this process's memory to engines on this machine; see `dart_weight_socket`.

Engines read a version while it is still being gathered from the ranks, and while its files are being written.

Invariants:
    - A version stays in memory until the next one is offered, and beyond that only for engines that read it already.
    - No reader gets the facts of a version whose weights are not finite, or not all there: it cannot serve it.
    - A reader that takes nothing for `STUCK_S` is cut off, so that it keeps no weights in memory.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socketserver
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from dart_agent.engines.embedded.memory_weights import bytes_of
from dart_agent.engines.weight_stream.dart_weight_socket import CHECK, SCHEME, TensorShape, cut, is_same_user
from dart_gym.utils.owned_directories import owned_directory
from dart_train.core.fingerprint import Fingerprint
from dart_train.trainer.weights.finiteness import is_finite

BUCKET_BYTES = 16 << 20
REQUEST_BYTES = 1 << 12
STUCK_S = 60.0
_log = logging.getLogger(__name__)


class GivenUpError(Exception):
    """A version will never be whole."""


class VersionInMemory:
    """The weights of one version, from the moment at which their gathering begins.

    Args:
        tensors: what will be put, in this order.
    """

    def __init__(self, version: int, tensors: Sequence[TensorShape]) -> None:
        self.version = version
        self.tensors = tuple(tensors)
        self._weights: list[Tensor] = []
        self._facts: dict[str, Any] | None = None
        self._finite: bool | None = None
        self._given_up = ""
        self._changed = threading.Condition()
        self._checking = threading.Lock()

    def put(self, tensor: Tensor) -> None:
        """Add the next tensor, which nobody changes any more: contiguous, in the host's memory."""
        with self._changed:
            self._weights.append(tensor)
            self._changed.notify_all()

    def finish(self, fingerprint: Fingerprint | None) -> None:
        """Say that all tensors are there."""
        with self._changed:
            self._facts = {"fingerprint": asdict(fingerprint) if fingerprint is not None else None}
            self._changed.notify_all()

    def give_up(self, why: str) -> None:
        """Say that the rest will never come."""
        with self._changed:
            self._given_up = why
            self._changed.notify_all()

    def tensor(self, index: int) -> Tensor:
        """Wait for a tensor. Raises `GivenUpError`."""
        with self._changed:
            self._changed.wait_for(lambda: self._given_up or len(self._weights) > index)
            if len(self._weights) <= index:
                raise GivenUpError(self._given_up)
            return self._weights[index]

    def facts(self) -> dict[str, Any]:
        """Wait until the version is complete and return its facts.

        Raises:
            GivenUpError: if the version was given up, or holds a value that is not finite.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._given_up or self._facts is not None)
            facts = self._facts
        if facts is None:
            raise GivenUpError(self._given_up)
        with self._checking:  # once, and beside the training
            if self._finite is None:
                self._finite = all(is_finite(tensor) for tensor in self._weights)
        if not self._finite:
            raise GivenUpError(f"version {self.version} has weights that are not finite")
        return facts


class WeightServer:
    """Listens on a Unix socket in a directory of its own, from its start to `close`.

    Args:
        bucket_bytes: size of the pieces that are sent and checked.

    Attributes:
        address: where engines read.
        served: number of times that a version was read to its end.
    """

    def __init__(self, bucket_bytes: int = BUCKET_BYTES) -> None:
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes {bucket_bytes} must be at least 1")
        self.bucket_bytes = bucket_bytes
        self.served = 0
        self._offered: VersionInMemory | None = None
        self._closing = contextlib.ExitStack()
        path = self._closing.enter_context(owned_directory("weights")) / "weights.sock"
        self.address = f"{SCHEME}{path}"
        self._server = _Server(self, str(path))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="weights", daemon=True)
        self._thread.start()

    def offer(self, version: int, tensors: Sequence[TensorShape]) -> VersionInMemory:
        """Begin a version, which takes the place of the one before."""
        self._offered = offered = VersionInMemory(version, tensors)
        return offered

    def find(self, version: int) -> VersionInMemory:
        """Return a version that is offered. Raises `GivenUpError`."""
        offered = self._offered
        if offered is None or offered.version != version:
            newest = "none" if offered is None else f"version {offered.version}"
            raise GivenUpError(f"version {version} is not in memory any more, the newest there is {newest}")
        return offered

    def close(self) -> None:
        """Stop listening, and forget the weights. Idempotent."""
        if self._offered is not None:
            self._offered.give_up("the trainer ends")
            self._offered = None
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._closing.close()


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """One thread for each reader."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, owner: WeightServer, path: str) -> None:
        self.owner = owner
        super().__init__(path, _Reader)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that fails ends its own connection."""
        _log.exception("a reader of weights failed")


class _Reader(socketserver.StreamRequestHandler):
    """One connection."""

    timeout = STUCK_S
    server: _Server

    def handle(self) -> None:
        """Answer the one request of a reader."""
        if not is_same_user(self.connection):
            return
        try:
            self._answer(json.loads(self.rfile.readline(REQUEST_BYTES)))
        except GivenUpError as error:
            _log.info("a reader of weights was sent away: %s", error)
        except OSError as error:  # it went, or takes nothing
            _log.info("a reader of weights is gone: %s", error)
        except (ValueError, KeyError, TypeError) as error:
            self._say({"error": f"bad request: {error}"})

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            version = self.server.owner.find(request["version"])
        except GivenUpError as error:
            self._say({"error": str(error)})
            raise
        if request["want"] == "weights":
            self._send(version)
        elif request["want"] != "facts":
            raise ValueError(f"nobody has {request['want']!r}")
        try:
            facts = version.facts()
        except GivenUpError as error:
            self._say({"error": str(error)})
            raise
        self.server.owner.served += request["want"] == "weights"
        self._say(facts)

    def _send(self, version: VersionInMemory) -> None:
        limit = self.server.owner.bucket_bytes
        tensors = [[one.name, one.dtype, one.shape] for one in version.tensors]
        self._say({"tensors": tensors, "bucket_bytes": limit})
        for bucket in cut([_size(one) for one in version.tensors], limit):
            check = 0
            for part in _parts(version, bucket):
                self.connection.sendall(part)
                check = zlib.crc32(part, check)
            self.connection.sendall(CHECK.pack(check))

    def _say(self, line: dict[str, Any]) -> None:
        self.connection.sendall(json.dumps(line).encode() + b"\n")


def _parts(version: VersionInMemory, bucket: Sequence[tuple[int, int, int]]) -> Iterator[memoryview]:
    for index, begin, end in bucket:
        yield bytes_of(version.tensor(index))[begin:end]


def _size(tensor: TensorShape) -> int:
    count = getattr(torch, tensor.dtype).itemsize
    for length in tensor.shape:
        count *= length
    return count
