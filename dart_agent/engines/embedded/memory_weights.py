"""Reads weights from a trainer's memory into tensors of this process, beside what the engine serves."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from dart_agent.engines.base.engine import UpdateNotBegun
from dart_agent.engines.weight_stream.dart_weight_socket import NotReadError, TensorShape, read_weights


def staged_weights(location: str, check: Callable[[Mapping[str, tuple[int, ...]]], None]) -> dict[str, Tensor]:
    """Return a version's tensors by name, in the host's memory; the model is left alone.

    Args:
        location: of the version, `memory+unix:///path.sock#version`.
        check: is told the shapes before any memory is taken; raises `ValueError` where they are not the model's.

    Raises:
        UpdateNotBegun: if the version did not arrive whole, or does not fit.
    """
    staged: dict[str, Tensor] = {}

    def allocate(tensors: list[TensorShape]) -> list[memoryview]:
        check({tensor.name: tensor.shape for tensor in tensors})
        for tensor in tensors:
            dtype = getattr(torch, tensor.dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"{tensor.name} is of {tensor.dtype!r}, which is no number type")
            staged[tensor.name] = torch.empty(tensor.shape, dtype=dtype)
        return [bytes_of(tensor) for tensor in staged.values()]

    try:
        read_weights(location, allocate)
    except NotReadError as error:
        raise UpdateNotBegun(str(error)) from error
    return staged


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in the host's memory, not copied."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data
