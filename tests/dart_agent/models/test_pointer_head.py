"""The head's formulas against plain ones, padding, and its loss."""

from __future__ import annotations

import math

import pytest
import torch

from dart_agent.models.pointer_head import PointerHead, pointer_loss

pytestmark = pytest.mark.train


@pytest.fixture
def head() -> PointerHead:
    torch.manual_seed(0)
    return PointerHead(16, 24).eval()


@torch.no_grad()
def test_padding_changes_nothing(head: PointerHead):
    patches, state = torch.randn(2, 7, 16), torch.randn(2, 16)
    real = torch.arange(7) < torch.tensor([[7], [4]])
    both = head(patches, state, real)
    alone = head(patches[1:, :4], state[1:], torch.ones(1, 4, dtype=torch.bool))
    torch.testing.assert_close(both[1, :4], alone[0])
    assert torch.isneginf(both[1, 4:]).all()
    torch.testing.assert_close(both.exp().sum(-1), torch.ones(2))


@torch.no_grad()
def test_it_computes_in_float32(head: PointerHead):
    patches, state = torch.randn(1, 5, 16).bfloat16(), torch.randn(1, 16).bfloat16()
    real = torch.ones(1, 5, dtype=torch.bool)
    found = head(patches, state, real)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, head(patches.float(), state.float(), real))


def test_its_names_and_shapes_are_those_of_the_released_head(head: PointerHead):
    assert {name: tuple(value.shape) for name, value in head.state_dict().items()} == {
        "self_attention.in_proj_weight": (48, 16), "self_attention.in_proj_bias": (48,),
        "self_attention.out_proj.weight": (16, 16), "self_attention.out_proj.bias": (16,),
        "layer_norm.weight": (16,), "layer_norm.bias": (16,),
        "projection_enc.0.weight": (24, 16), "projection_enc.0.bias": (24,),
        "projection_enc.2.weight": (16, 24), "projection_enc.2.bias": (16,),
        "projection_dec.0.weight": (24, 16), "projection_dec.0.bias": (24,),
        "projection_dec.2.weight": (16, 24), "projection_dec.2.bias": (16,),
    }  # fmt: skip


def test_the_loss_is_the_divergence_from_uniform_over_all_targets():
    logprobs = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.5, 0.0]]).log()
    targets = torch.tensor([[True, True, False, False], [False, False, True, False]])
    first = 0.5 * math.log(0.5 / 0.5) + 0.5 * math.log(0.5 / 0.25)
    assert float(pointer_loss(logprobs, targets)) == pytest.approx((first + math.log(1 / 0.5)) / 2)
    uniform = torch.full((1, 4), 0.25).log()
    assert float(pointer_loss(uniform, torch.ones(1, 4, dtype=torch.bool))) == pytest.approx(0.0, abs=1e-6)
