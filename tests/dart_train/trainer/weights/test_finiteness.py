"""Weights with a single NaN or infinity are found, and large ones are not taken for them."""

from __future__ import annotations

import pytest
import torch

from dart_train.trainer.weights.finiteness import is_finite

pytestmark = [pytest.mark.train]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_one_bad_number_is_enough_and_a_large_sum_is_not(dtype):
    weights = torch.full((300, 7), torch.finfo(dtype).max, dtype=dtype)
    assert is_finite(weights) and not weights.sum().isfinite()
    for bad in (torch.nan, torch.inf, -torch.inf):
        weights[17, 3] = bad
        assert not is_finite(weights)
    weights[18, 3] = torch.inf  # both infinities: their sum is NaN
    assert not is_finite(weights)


def test_integers_and_nothing_are_finite():
    assert is_finite(torch.arange(3)) and is_finite(torch.empty(0, 4))
