"""PyTorch's count of operations on a CPU, attention and products in groups included."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def counting() -> FlopCounterMode:
    """Count the operations of a `with` block."""
    return FlopCounterMode(display=False, custom_mapping=_ON_CPU)


def _attention(
    query: Any, key: Any, value: Any, dropout: float = 0.0, causal: bool = False, *_: Any, **more: Any
) -> float:
    """Operations of one call on a CPU, which PyTorch's counter does not know; half of them where it is causal."""
    causal = bool(more.get("is_causal", causal))
    batch, heads, length, width = query
    return 4 * batch * heads * length * key[2] * width * (0.5 if causal else 1.0)


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, output: Any, logsumexp: Any,
                        dropout: float, causal: bool, *_: Any, **more: Any) -> float:  # fmt: skip
    return 2 * _attention(query, key, value, dropout, causal)


def _grouped(left: Any, right: Any, *_: Any, **more: Any) -> float:
    """Operations of rows in groups by a matrix for each group, or of the gradient of such matrices."""
    return 2 * left[0] * left[1] * right[-1]


_OPERATORS = torch.ops.aten
_ON_CPU = {
    _OPERATORS._scaled_dot_product_flash_attention_for_cpu: _attention,
    _OPERATORS._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _OPERATORS._grouped_mm: _grouped,
}
