"""Sends tensors to the workers of a vLLM server, packed, in an order both sides know.

They are those of a checkpoint directory, or of a version in a trainer's memory, which is read whole before it is sent.

As a script it is the sender: requests come as JSON lines on standard input, replies go as JSON lines to standard
output, one for each request, and it ends with its input.

    open {path}                             -> {names, dtype_names, shapes}: what `send` sends, in this order
    listen {backend, address, world_size, within_s} -> {port}: where the workers meet it
    join {}                                 -> {}: once all of them are there
    send {buffer_bytes}                     -> {bytes, seconds}
    leave {}                                -> {}

It needs torch and safetensors; for the backend "nccl" also a GPU, and vLLM, whose own communicator and packing it uses.

Invariants:
    - Tensors go out in the order of `open`. Neighbours share a buffer: one is closed by the tensor that takes it over
      `buffer_bytes`, which is vLLM's own rule, so that both sides cut alike without telling each other.
    - Whatever fails is an {error}; the group is then left, and `listen` makes a new one.
"""

from __future__ import annotations

import datetime
import glob
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from safetensors import safe_open

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
    "BOOL": "bool",
}  # fmt: skip
NUM_BUFFERS = 2
MEMORY = "memory+unix://"
T = TypeVar("T")


class Group(Protocol):
    """Processes that get what rank 0 sends."""

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """Send the tensor (rank `src`), or fill it with what was sent (all others)."""

    def destroy(self) -> None:
        """Leave."""


class TCPGroup:
    """A group over TCP, whose connections use one address of this machine; rank 0 is the sender, with a `listener`."""

    def __init__(
        self,
        address: str,
        port: int,
        rank: int,
        world_size: int,
        *,
        timeout_s: float = 300.0,
        listener: socket.socket | None = None,
    ) -> None:
        timeout = datetime.timedelta(seconds=timeout_s)
        own = _own_address(address, port)
        # The store takes the socket over and closes it.
        master: dict[str, Any] = {} if listener is None else {"master_listen_fd": listener.detach(), "use_libuv": True}
        store = dist.TCPStore(
            address, port, world_size, listener is not None, timeout=timeout, wait_for_workers=False, **master
        )
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=own)]
        self._store = store  # it must outlive the group
        self._group: Any = dist.ProcessGroupGloo(dist.PrefixStore("weights", store), rank, world_size, options)

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> None:
        """See `Group`; returns when it is done."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self._group.broadcast([tensor], options).wait()

    def destroy(self) -> None:
        """Leave the group."""
        del self._group, self._store


def _own_address(address: str, port: int) -> str:
    """Ours on the way to another one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((address, port))
        return str(way.getsockname()[0])


class Checkpoint:
    """The tensors of a directory, by file and name."""

    def __init__(self, directory: str, device: str) -> None:
        paths = sorted(glob.glob(os.path.join(glob.escape(directory), "*.safetensors")))
        if not paths:
            raise FileNotFoundError(f"{directory} holds no *.safetensors")
        self._files = [safe_open(path, framework="pt", device=device) for path in paths]
        self._order = [(file, name) for file in self._files for name in sorted(file.keys())]

    def described(self) -> dict[str, list[Any]]:
        """Names, dtypes as torch names them, and shapes, in order; no tensor is read."""
        slices = [file.get_slice(name) for file, name in self._order]
        return {
            "names": [name for _, name in self._order],
            "dtype_names": [DTYPES[each.get_dtype()] for each in slices],
            "shapes": [list(each.get_shape()) for each in slices],
        }

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for file, name in self._order:
            yield name, file.get_tensor(name)


class InMemory:
    """The tensors of a version in a trainer's memory (`dart_weight_socket`), all of them read."""

    def __init__(self, location: str, device: str) -> None:
        from dart_weight_socket import read_weights  # beside this script

        self._device = device
        self._tensors: dict[str, torch.Tensor] = {}
        read_weights(location, self._allocate)

    def _allocate(self, shapes: list[Any]) -> list[memoryview]:
        self._tensors = {one.name: torch.empty(one.shape, dtype=getattr(torch, one.dtype)) for one in shapes}
        return [each.view(-1).view(torch.uint8).numpy().data for each in self._tensors.values()]

    def described(self) -> dict[str, list[Any]]:
        """See `Checkpoint`."""
        return {
            "names": [*self._tensors],
            "dtype_names": [str(each.dtype).removeprefix("torch.") for each in self._tensors.values()],
            "shapes": [list(each.shape) for each in self._tensors.values()],
        }

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._tensors.items():
            yield name, tensor.to(self._device)


def cut(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Neighbours that share a buffer: up to the item, that one included, that takes it over the limit. Pure."""
    part: list[T] = []
    total = 0
    for item in items:
        part.append(item)
        total += size(item)
        if total > limit:
            yield part
            part, total = [], 0
    if part:
        yield part


def send(group: Group, tensors: Iterable[tuple[str, torch.Tensor]], buffer_bytes: int) -> int:
    """Send named tensors as rank 0; returns the bytes."""
    total = 0
    for part in cut(tensors, lambda item: item[1].nbytes, buffer_bytes):
        packed = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for _, tensor in part])
        group.broadcast(packed, 0)
        total += packed.numel()
    return total


def receive(
    group: Group,
    names: list[str],
    dtype_names: list[str],
    shapes: list[list[int]],
    buffer_bytes: int,
    load: Callable[[list[tuple[str, torch.Tensor]]], object],
) -> None:
    """Hand what rank 0 sends to `load`, buffer by buffer."""

    def size(item: tuple[str, torch.dtype, torch.Size]) -> int:
        return item[1].itemsize * item[2].numel()

    expected = [
        (name, getattr(torch, dtype), torch.Size(shape))
        for name, dtype, shape in zip(names, dtype_names, shapes, strict=True)
    ]
    for part in cut(expected, size, buffer_bytes):
        sizes = [size(item) for item in part]
        packed = torch.empty(sum(sizes), dtype=torch.uint8)
        group.broadcast(packed, 0)
        load(
            [
                # A copy begins where its dtype may: a slice of the buffer need not.
                (name, piece.clone().view(dtype).view(shape))
                for (name, dtype, shape), piece in zip(part, packed.split(sizes), strict=True)
            ]
        )


class Sender:
    """Answers the requests; see the module."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._checkpoint: Checkpoint | InMemory | None = None
        self._opened = ""
        self._waiting: Callable[[], Any] | None = None
        self._group: Any = None
        self._backend = ""

    def open(self, path: str) -> dict[str, Any]:
        """Look into a checkpoint directory, or read a version from memory, once for all servers."""
        if self._checkpoint is None or self._opened != path or not path.startswith(MEMORY):
            self._checkpoint, self._opened = None, ""  # no more than one version at a time
            self._checkpoint = (InMemory if path.startswith(MEMORY) else Checkpoint)(path, self._device)
            self._opened = path
        return self._checkpoint.described()

    def listen(self, backend: str, address: str, world_size: int, within_s: float) -> dict[str, Any]:
        """Choose a port; for TCP it is ours from now on."""
        self.leave()
        listener = socket.create_server((address, 0))
        port = listener.getsockname()[1]
        if backend == "tcp":
            self._waiting = lambda: TCPGroup(address, port, 0, world_size, timeout_s=within_s, listener=listener)
        else:
            listener.close()  # vLLM's own meeting opens it again
            self._waiting = lambda: _nccl_group(address, port, world_size, self._device)
        self._backend = backend
        return {"port": port}

    def join(self) -> dict[str, Any]:
        """Wait for the workers."""
        if self._waiting is None:
            raise RuntimeError("join without listen")
        self._group, self._waiting = self._waiting(), None
        return {}

    def send(self, buffer_bytes: int) -> dict[str, Any]:
        """Send all tensors of the checkpoint."""
        if self._group is None or self._checkpoint is None:
            raise RuntimeError("send without open and join")
        started = time.monotonic()
        if self._backend == "tcp":
            total = send(self._group, self._checkpoint, buffer_bytes)
        else:
            total = _nccl_send(self._group, self._checkpoint, buffer_bytes)
        return {"bytes": total, "seconds": time.monotonic() - started}

    def leave(self) -> dict[str, Any]:
        """Leave the group, if there is one."""
        group = self._group
        self._group = None
        self._waiting = None
        if group is not None:
            group.destroy()
        return {}


def _nccl_group(address: str, port: int, world_size: int, device: str) -> Any:
    """Rank 0 of vLLM's communicator."""
    from vllm.distributed.weight_transfer.nccl_common import trainer_init

    torch.accelerator.set_device_index(torch.device(device).index or 0)
    return trainer_init({"master_address": address, "master_port": port, "world_size": world_size})


def _nccl_send(group: Any, checkpoint: Checkpoint | InMemory, buffer_bytes: int) -> int:
    """Send with vLLM's own packing, several buffers at a time."""
    from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

    total = 0

    def counted() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal total
        for name, tensor in checkpoint:
            total += tensor.nbytes
            yield name, tensor

    packed_nccl_broadcast_producer(
        iterator=counted(),
        group=group,
        src=0,
        post_iter_func=lambda item: item[1],
        buffer_size_bytes=buffer_bytes,
        num_buffers=NUM_BUFFERS,
    )
    return total


def main() -> None:
    """Answer requests until there are no more."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not get between the replies
    sender = Sender(device)
    operations = {name: getattr(sender, name) for name in ("open", "listen", "join", "send", "leave")}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = operations[request.pop("op")](**request)
        except Exception as error:  # whatever it is, the other side has to know
            sender.leave()
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies)


if __name__ == "__main__":
    main()
