"""Losses against values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from dart_train.trainer import losses

MASK = torch.tensor([[True, True, False], [True, False, False]])


def test_logprobs_and_entropy_of_a_known_distribution():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]]))
    logprobs, entropies = losses.token_logprobs(logits, torch.tensor([0, 2]))
    assert logprobs.tolist() == pytest.approx([math.log(0.5), math.log(0.6)])
    expected = [1.5 * math.log(2), -(0.4 * math.log(0.2) + 0.6 * math.log(0.6))]
    assert entropies.tolist() == pytest.approx(expected)


def test_suppressed_tokens_are_left_out_of_softmax_and_entropy():
    logits = torch.tensor([[1.0, 50.0, 1.0, -3.0]], requires_grad=True)
    logprobs, entropies = losses.token_logprobs(logits, torch.tensor([0]), suppressed_ids=(1, 3))
    assert logprobs.item() == pytest.approx(math.log(0.5))
    assert entropies.item() == pytest.approx(math.log(2))
    (logprobs.sum() + entropies.sum()).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert logits.grad[0, 1] == logits.grad[0, 3] == 0


def test_logprobs_of_half_precision_logits_are_computed_in_float32():
    logits = (torch.arange(1000.0) / 50).to(torch.bfloat16)[None]
    logprobs, _ = losses.token_logprobs(logits, torch.tensor([999]))
    assert logprobs.dtype is torch.float32
    exact = logits.double().log_softmax(-1)[0, 999].item()
    assert logprobs.item() == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.1, 2.0, -2.2),  # inside the clip
        (1.5, 2.0, -2.56),  # above 1 + 0.28
        (0.5, 2.0, -1.0),  # below, but that direction is not clipped
        (1.5, -2.0, 3.0),
        (0.5, -2.0, 1.6),  # below 1 - 0.2
        (30.0, -2.0, 20.0),  # dual clip at 10
        (30.0, 2.0, -2.56),
    ],
)
def test_clip_is_asymmetric_and_dual(ratio, advantage, expected):
    loss = losses.clipped_loss(torch.tensor([[ratio]]), torch.tensor([advantage]), delta=10.0)
    assert loss.item() == pytest.approx(expected)


def test_without_delta_a_negative_advantage_is_unbounded():
    assert losses.clipped_loss(torch.tensor([[30.0]]), torch.tensor([-2.0])).item() == pytest.approx(60.0)


def test_clip_stops_the_gradient_only_where_it_acts():
    ratio = torch.tensor([[1.1, 1.5, 0.5]], requires_grad=True)
    losses.clipped_loss(ratio, torch.tensor([1.0])).sum().backward()
    assert ratio.grad is not None and ratio.grad.tolist() == [[-1.0, 0.0, -1.0]]


def test_truncated_weight():
    old = torch.tensor([[-1.0, -2.0, 7.0], [-1.0, -1.0, -1.0]], requires_grad=True)
    behaviour = torch.tensor([[-1.5, -1.0, 0.0], [0.0, 0.0, 0.0]])
    weight = losses.truncated_weight(old, behaviour, MASK & torch.tensor([[True], [False]]), 1.0)
    assert weight[0].tolist() == pytest.approx([1.0, math.exp(-1), 1.0])
    assert weight[1].tolist() == [1.0, 1.0, 1.0]  # behaviour unknown
    assert not weight.requires_grad
    assert losses.truncated_weight(old, behaviour, MASK, 2.0)[0, 0].item() == pytest.approx(math.exp(0.5))


def test_equal_logprobs_have_weight_one():
    logprobs = torch.randn(3, 4)
    weight = losses.truncated_weight(logprobs, logprobs, torch.ones(3, 4, dtype=torch.bool), 1.0)
    assert torch.equal(weight, torch.ones(3, 4))


def test_k3_divergence():
    logprobs = torch.tensor([[-1.0, -1.0, 5.0]], requires_grad=True)
    reference = torch.tensor([[-1.5, -1.0, float("nan")]])
    k3 = losses.divergence(logprobs, reference, MASK[:1])
    assert k3[0].tolist() == pytest.approx([math.exp(-0.5) + 0.5 - 1, 0.0, 0.0])
    k3.sum().backward()
    assert logprobs.grad is not None and logprobs.grad[0, 0].item() == pytest.approx(1 - math.exp(-0.5))
    far = losses.divergence(torch.tensor([[-100.0]]), torch.tensor([[0.0]]), torch.ones(1, 1, dtype=torch.bool))
    assert far.item() == 10.0


def test_ratio_per_token_and_per_sequence():
    logprobs = torch.tensor([[-1.0, -2.0, 0.0], [-1.0, 0.0, 0.0]])
    old = torch.tensor([[-1.2, -2.6, -9.0], [-1.0, float("inf"), 0.0]])
    token = losses.importance_ratio(logprobs, old, MASK)
    assert token.flatten().tolist() == pytest.approx([math.exp(0.2), math.exp(0.6), 1, 1, 1, 1])
    sequence = losses.importance_ratio(logprobs, old, MASK, "sequence")
    assert sequence[0].tolist() == pytest.approx([math.exp(0.4)] * 3)


def test_high_entropy_steps_are_chosen_within_their_group():
    entropies = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    groups = torch.tensor([0] * 5 + [1] * 5)
    kept = losses.high_entropy_steps(entropies, groups, keep=0.8)
    # The 20 % quantile of 1...5 is 1.8: only the least falls below.
    assert kept.tolist() == [False, True, True, True, True] * 2
    assert losses.high_entropy_steps(entropies, groups, keep=1.0).all()


def test_equal_entropies_are_all_kept():
    kept = losses.high_entropy_steps(torch.full((7,), 0.3), torch.zeros(7, dtype=torch.long), keep=0.5)
    assert kept.all()


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("dapo", (1 + 2 + 9) / 3),
        ("grpo", (1.5 + 9) / 2),
        ("dr_grpo", (1 + 2 + 9) / (2 * 10)),
    ],
)
def test_aggregation(loss_type, expected):
    values = torch.tensor([[1.0, 2.0, float("nan")], [9.0, float("inf"), 0.0]])
    normalizer = losses.Normalizer(tokens=3, samples=2, max_tokens=10)
    assert losses.aggregate(values, MASK, normalizer, loss_type).item() == pytest.approx(expected)
    parts = [losses.aggregate(values[[row]], MASK[[row]], normalizer, loss_type) for row in (0, 1)]
    assert sum(parts).item() == pytest.approx(expected)


def test_clip_fractions_count_where_the_gradient_was_cut():
    ratio = torch.tensor([[1.5, 0.5, 9.0], [0.5, 1.0, 1.0]])
    counts = losses.clip_fractions(ratio, torch.tensor([1.0, -1.0]), MASK, epsilon=0.2, epsilon_high=0.28)
    assert {name: int(count) for name, count in counts.items()} == {"low": 1, "high": 1, "region": 2}
