"""Whether weights are finite, at the price of reading them once."""

from __future__ import annotations

import torch
from torch import Tensor


def is_finite(tensor: Tensor) -> bool:
    """Return whether a tensor holds neither NaN nor infinity.

    A sum passes both on, and takes a tenth of the time of `torch.isfinite`, or less. The sum of finite numbers may be
    too large for their type, so that a sum that is not finite is looked into.
    """
    if not tensor.is_floating_point():
        return True
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
