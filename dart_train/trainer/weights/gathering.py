"""Brings a tensor of which ranks hold parts into the main rank's host memory, a bucket at a time.

Invariants:
    - A rank's device takes at most a bucket beyond what it holds, however large the tensor is.
    - Parts travel in the number type that they end in: half as many bytes for weights published in bfloat16.
    - A rank that dies ends the gathering at once, one that hangs ends it after the process group's time limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from dart_train.core.train_errors import RankLostError
from dart_train.trainer.weights.ranks import Ranks, first_row, local_part

BUCKET_BYTES = 64 << 20


def gathered(tensor: Tensor, dtype: torch.dtype, ranks: Ranks) -> Tensor | None:
    """Return a copy of the whole tensor on the main rank, contiguous in the host's memory; None on the others.

    Called by all ranks where the tensor is sharded.

    Raises:
        RankLostError: if a rank that has a part, or is to get one, has ended or does not answer.
    """
    tensor = tensor.detach()
    if isinstance(tensor, DTensor) and tuple(tensor.placements) != (Shard(0),):
        tensor = tensor.full_tensor()
    if not isinstance(tensor, DTensor):
        return tensor.to("cpu", dtype, copy=True).contiguous() if ranks.is_main else None
    own = local_part(tensor).reshape(-1)
    if not ranks.is_main:
        for begin, end in bucket_bounds(own.numel(), dtype):
            _travel(dist.send, own[begin:end].to(dtype), 0, ranks)
        return None
    whole = torch.empty(tensor.shape, dtype=dtype)
    flat = whole.view(-1)
    row = math.prod(tensor.shape[1:])
    starts = [first_row(tensor, replace(ranks, rank=rank)) * row for rank in range(ranks.count + 1)]
    for begin, end in bucket_bounds(own.numel(), dtype):
        flat[begin:end].copy_(own[begin:end])
    for rank in range(1, ranks.count):
        part = flat[starts[rank] : starts[rank + 1]]
        for begin, end in bucket_bounds(part.numel(), dtype):
            if own.device.type == "cpu":
                _travel(dist.recv, part[begin:end], rank, ranks)
                continue
            bucket = torch.empty(end - begin, dtype=dtype, device=own.device)
            _travel(dist.recv, bucket, rank, ranks)
            part[begin:end].copy_(bucket)
    return whole


def _travel(way: Callable[..., object], bucket: Tensor, other: int, ranks: Ranks) -> None:
    """Send a bucket to another rank, or receive one from it."""
    try:
        way(bucket, other, group=ranks.group)
    except RuntimeError as error:  # torch has no narrower one for what gloo says
        raise RankLostError(
            f"rank {other} ended, or did not answer in time, while weights were gathered from the ranks; "
            f"its own log says why. What was seen here: {error}"
        ) from error


def bucket_bounds(numbers: int, dtype: torch.dtype) -> Iterator[tuple[int, int]]:
    """Cut a number of values into buckets, of one value at least."""
    most = max(1, BUCKET_BYTES // dtype.itemsize)
    for begin in range(0, numbers, most):
        yield begin, min(numbers, begin + most)
