"""Which experts a mixture's routers chose for sampled tokens, as bytes: little-endian uint16, token by token.

A token has the numbers of `k` experts for each layer, layer by layer: those that computed the place that it was
sampled from. What `k` and the layers are, the model says.
"""

import numpy as np
from numpy.typing import NDArray

_TYPE = np.dtype("<u2")


def pack(chosen: NDArray[np.integer]) -> bytes:
    """Pack (tokens, layers, k) numbers of experts."""
    return chosen.astype(_TYPE).tobytes()


def size(tokens: int, width: int) -> int:
    """Return the packed size of `tokens` tokens that `width` experts compute in all layers together."""
    return tokens * width * _TYPE.itemsize


def unpack(data: bytes, tokens: int) -> NDArray[np.int64]:
    """Return (tokens, layers * k) numbers of experts. Raises `ValueError` for bytes of another length."""
    if tokens < 1 or len(data) % (tokens * _TYPE.itemsize):
        raise ValueError(f"{len(data)} bytes are no experts of {tokens} tokens")
    return np.frombuffer(data, _TYPE).reshape(tokens, -1).astype(np.int64)
