"""Losses against values computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dart_train.trainer import losses
from dart_train.trainer.losses import selection
from dart_train.trainer.policy_logprobs import token_logprobs

MASK = torch.tensor([[True, True, False], [True, False, False]])


def test_logprobs_and_entropy_of_a_known_distribution():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]]))
    logprobs, entropies = token_logprobs(logits, torch.tensor([0, 2]))
    assert logprobs.tolist() == pytest.approx([math.log(0.5), math.log(0.6)])
    expected = [1.5 * math.log(2), -(0.4 * math.log(0.2) + 0.6 * math.log(0.6))]
    assert entropies.tolist() == pytest.approx(expected)


def test_suppressed_tokens_are_left_out_of_softmax_and_entropy():
    logits = torch.tensor([[1.0, 50.0, 1.0, -3.0]], requires_grad=True)
    logprobs, entropies = token_logprobs(logits, torch.tensor([0]), suppressed_ids=(1, 3))
    assert logprobs.item() == pytest.approx(math.log(0.5))
    assert entropies.item() == pytest.approx(math.log(2))
    (logprobs.sum() + entropies.sum()).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert logits.grad[0, 1] == logits.grad[0, 3] == 0


def test_logprobs_of_half_precision_logits_are_computed_in_float32():
    logits = (torch.arange(1000.0) / 50).to(torch.bfloat16)[None]
    logprobs, _ = token_logprobs(logits, torch.tensor([999]))
    assert logprobs.dtype is torch.float32
    exact = logits.double().log_softmax(-1)[0, 999].item()
    assert logprobs.item() == pytest.approx(exact, abs=1e-5)


def clipped(ratio: torch.Tensor, advantage: float, delta: float | None = None) -> torch.Tensor:
    """GRPO's loss with DART's clip."""
    terms = losses.Terms(ratio, torch.zeros_like(ratio), torch.tensor([[advantage]]), torch.ones_like(ratio).bool())
    return losses.GRPO(epsilon=0.2, epsilon_high=0.28, delta=delta)(terms)


def total(values: torch.Tensor, mask: torch.Tensor, normalizer: losses.Normalizer, loss_type: str) -> torch.Tensor:
    return losses.LOSSES.get(loss_type).aggregate(values, mask, normalizer)


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
    loss = clipped(torch.tensor([[ratio]]), advantage, delta=10.0)
    assert loss.item() == pytest.approx(expected)


def test_without_delta_a_negative_advantage_is_unbounded():
    assert clipped(torch.tensor([[30.0]]), -2.0).item() == pytest.approx(60.0)


def test_clip_stops_the_gradient_only_where_it_acts():
    ratio = torch.tensor([[1.1, 1.5, 0.5]], requires_grad=True)
    clipped(ratio, 1.0).sum().backward()
    assert ratio.grad is not None and ratio.grad.tolist() == [[-1.0, 0.0, -1.0]]


def test_truncated_weight():
    old = torch.tensor([[-1.0, -2.0, 7.0], [-1.0, -1.0, -1.0]], requires_grad=True)
    behaviour = torch.tensor([[-1.5, -1.0, 0.0], [0.0, 0.0, 0.0]])
    weight = losses.correction_weight(old, behaviour, MASK & torch.tensor([[True], [False]]))
    assert weight[0].tolist() == pytest.approx([1.0, math.exp(-1), 1.0])
    assert weight[1].tolist() == [1.0, 1.0, 1.0]  # behaviour unknown
    assert not weight.requires_grad
    assert losses.correction_weight(old, behaviour, MASK, clip_max=2.0)[0, 0].item() == pytest.approx(math.exp(0.5))


def test_equal_logprobs_have_weight_one():
    logprobs = torch.randn(3, 4)
    weight = losses.correction_weight(logprobs, logprobs, torch.ones(3, 4, dtype=torch.bool))
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
        ("bnpo", (1 + 2 + 9) / 3),
        ("cispo", (1 + 2 + 9) / 3),
    ],
)
def test_aggregation(loss_type, expected):
    values = torch.tensor([[1.0, 2.0, float("nan")], [9.0, float("inf"), 0.0]])
    normalizer = losses.Normalizer(tokens=3, samples=2, max_tokens=10)
    assert total(values, MASK, normalizer, loss_type).item() == pytest.approx(expected)
    parts = [total(values[[row]], MASK[[row]], normalizer, loss_type) for row in (0, 1)]
    assert sum(parts).item() == pytest.approx(expected)


def test_clip_fractions_count_where_the_gradient_was_cut():
    ratio = torch.tensor([[1.5, 0.5, 9.0], [0.5, 1.0, 1.0]])
    terms = losses.Terms(ratio, torch.zeros_like(ratio), torch.tensor([[1.0], [-1.0]]), MASK)
    cut = losses.GRPO(epsilon=0.2, epsilon_high=0.28).statistics(terms)
    counts = {name: int((where & MASK).sum()) for name, where in cut.items()}
    assert counts == {"clip_ratio/low_mean": 1, "clip_ratio/high_mean": 1, "clip_ratio/region_mean": 2}


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "bnpo", "dr_grpo", "cispo"])
def test_ranks_average_to_the_loss_of_one_process(loss_type):
    """Data parallelism averages: two unequal ranks must give what one process gives (bnpo: means of their own)."""
    values = torch.tensor([[1.0, 2.0, 0.0], [9.0, 0.0, 0.0]])
    whole = total(values, MASK, losses.Normalizer(3, 2, 10), loss_type).item()
    normalizers = [losses.Normalizer(3, 2, 10, rank_tokens=tokens, ranks=2) for tokens in (2, 1)]
    parts = [total(values[[row]], MASK[[row]], normalizers[row], loss_type).item() for row in (0, 1)]
    assert sum(parts) / 2 == pytest.approx((1.5 + 9) / 2 if loss_type == "bnpo" else whole)


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    logprobs = torch.tensor([[-1.0, -2.0, float("nan")]], requires_grad=True)
    ratio = torch.tensor([[1.5, 9.0, 1.0]])
    terms = losses.Terms(ratio, logprobs.masked_fill(~MASK[:1], 0.0), torch.tensor([[2.0]]), MASK[:1])
    loss = losses.CISPO(epsilon_high=5.0)(terms)
    assert loss.tolist() == [[3.0, 20.0, 0.0]]
    loss.sum().backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [[-3.0, -10.0, 0.0]]


def test_gspo_with_a_gradient_per_token():
    old = torch.tensor([[-1.2, -2.6, 0.0]])
    mask, weight = MASK[:1], torch.tensor([[1.0, 0.0, 0.0]])
    gradients = {}
    for level in ("sequence", "sequence_token"):
        logprobs = torch.tensor([[-1.0, -2.0, 0.0]], requires_grad=True)
        ratio = losses.importance_ratio(logprobs, old, mask, level)
        assert ratio[0, :2].tolist() == pytest.approx([math.exp(0.4)] * 2)
        plain = torch.autograd.grad(ratio[mask].sum(), logprobs, retain_graph=True)[0]
        assert plain[0].tolist() == pytest.approx([math.exp(0.4)] * 2 + [0.0])
        gradients[level] = torch.autograd.grad((ratio * weight)[mask].sum(), logprobs)[0][0].tolist()
    # A weight on the first token alone: GSPO spreads it over the sequence, its token variant does not.
    assert gradients["sequence"] == pytest.approx([math.exp(0.4) / 2] * 2 + [0.0])
    assert gradients["sequence_token"] == pytest.approx([math.exp(0.4), 0.0, 0.0])


@pytest.mark.parametrize(
    ("mode", "low", "high", "expected"),
    [
        ("token_truncate", None, 1.0, [0.5, 1.0, 1.0]),
        ("token_truncate", 0.8, 2.5, [0.8, 2.0, 1.0]),
        ("token_mask", 0.8, 2.5, [0.0, 2.0, 1.0]),
        ("token_mask", None, 1.0, [0.5, 0.0, 1.0]),
        ("sequence_truncate", None, 0.9, [0.9, 0.9, 1.0]),
        ("sequence_mask", 0.9, 1.1, [1.0, 1.0, 1.0]),
        ("sequence_mask", 1.1, None, [0.0, 0.0, 1.0]),
    ],
)
def test_corrections(mode, low, high, expected):
    """Ratios of one half and two; the third token is not on record and keeps its weight of 1."""
    old = torch.log(torch.tensor([[0.5, 1.0, 1.0]]))
    behaviour = torch.tensor([[0.0, math.log(0.5), float("nan")]])
    weight = losses.correction_weight(old, behaviour, MASK[:1], mode, clip_min=low, clip_max=high)
    if mode.startswith("sequence"):
        expected = expected[:2] + [1.0]
        weight = torch.where(MASK[:1], weight, torch.ones(1))
    assert weight[0].tolist() == pytest.approx(expected)


def test_geometric_mask_does_not_depend_on_length():
    old = torch.zeros(3, 100)
    behaviour = torch.full((3, 100), -0.012)
    behaviour[1] = 0.1
    known = torch.ones(3, 100, dtype=torch.bool)
    known[2] = False
    kept = losses.geometric_mask(old, behaviour, known, low=0.98, high=1.02)
    assert kept.tolist() == [True, False, True]
    product = losses.correction_weight(old, behaviour, known, "sequence_mask", clip_max=3.0)
    assert product[0, 0] == 0  # the same harmless difference over 100 tokens is a factor of 3.3


def test_effective_sample_share():
    assert losses.effective_sample_share(4.0, 4.0, 4) == 1.0
    assert losses.effective_sample_share(4.0, 16.0, 4) == 0.25
    assert losses.effective_sample_share(0.0, 0.0, 0) == 0.0


@pytest.mark.parametrize(("estimator", "expected"), [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) + 0.5 - 1)])
def test_divergence_estimators(estimator, expected):
    values = losses.divergence(torch.tensor([[-1.0]]), torch.tensor([[-1.5]]), torch.ones(1, 1, dtype=bool), estimator)
    assert values.item() == pytest.approx(expected)


def test_high_entropy_tokens_as_trl():
    entropies = torch.tensor([[0.1, 0.6, 0.3], [0.4, 99.0, 0.2]])
    mask = torch.tensor([[True, True, True], [True, False, True]])
    kept = losses.high_entropy_tokens(entropies, mask, keep=0.4)
    assert kept.tolist() == [[False, True, False], [True, False, False]]
    assert torch.equal(losses.high_entropy_tokens(entropies, mask, 1.0), mask)
    assert not losses.high_entropy_tokens(entropies, torch.zeros_like(mask), 0.4).any()


def test_quantile_of_more_values_than_torch_takes(monkeypatch):
    values = torch.randn(1001, generator=torch.Generator().manual_seed(0))
    expected = [torch.quantile(values, share).item() for share in (0.0, 0.2, 0.77, 1.0)]
    monkeypatch.setattr(selection, "TORCH_LIMIT", 1000)
    found = [selection.quantile(values, share).item() for share in (0.0, 0.2, 0.77, 1.0)]
    assert found == pytest.approx(expected, abs=1e-6)


def test_dart_objective_by_hand():
    """Two steps, every term at once: clip, dual clip, truncated weight, step selection, KL, mean of means."""
    logprobs = torch.log(torch.tensor([[0.5, 0.2], [0.6, 0.3]]))
    old = torch.log(torch.tensor([[0.25, 0.2], [0.05, 0.3]]))
    behaviour = torch.log(torch.tensor([[0.5, 0.1], [0.1, 0.3]]))
    mask = torch.ones(2, 2, dtype=torch.bool)
    scored = losses.Scored(
        logprobs, torch.zeros(2, 2), old, mask, torch.tensor([1.6202, -0.5401]), behaviour, mask, old,
        kept_steps=torch.tensor([True, True]),
    )  # fmt: skip
    config = losses.ObjectiveConfig()  # epsilon 0.2 and 0.28, delta 10, C 1, beta 0.1
    # Ratios 2, 1 | 12, 1. Weights min(0.5, 1), min(2, 1) | min(0.5, 1), 1.
    first = [-1.6202 * 1.28 * 0.5, -1.6202]
    second = [0.5401 * 10 * 0.5, 0.5401]  # 12 is beyond the dual clip
    k3 = [[0.5 + math.log(2) - 1, 0.0], [1 / 12 + math.log(12) - 1, 0.0]]
    steps = [
        (sum(first) + 0.1 * sum(k3[0])) / 2,
        (sum(second) + 0.1 * sum(k3[1])) / 2,
    ]
    normalizer = losses.Normalizer(tokens=4, samples=2)
    assert losses.objective(scored, config, normalizer).loss.item() == pytest.approx(sum(steps) / 2, abs=1e-6)
    one = replace(scored, kept_steps=torch.tensor([True, False]))
    assert losses.objective(one, config, normalizer).loss.item() == pytest.approx(steps[0] / 2, abs=1e-6)
    weighted = replace(scored, weights=torch.tensor([3.0, 0.5]))
    expected = (3 * steps[0] + 0.5 * steps[1]) / 2
    assert losses.objective(weighted, config, normalizer).loss.item() == pytest.approx(expected, abs=1e-6)


def test_zero_filled_logprobs_and_equal_ones_have_weight_one():
    """Equal log-probabilities leave the weight at 1; no others raise it above C = 1."""
    old = torch.tensor([[-1.0, -2.0, -3.0]])
    assert losses.correction_weight(old, old, MASK[:1]).tolist() == [[1.0, 1.0, 1.0]]
    assert losses.correction_weight(old, torch.full_like(old, -9.0), MASK[:1]).tolist() == [[1.0, 1.0, 1.0]]


@given(
    logprob=st.floats(-50, 0), old=st.floats(-50, 0), behaviour=st.floats(-50, 0), reference=st.floats(-50, 0),
    advantage=st.floats(-5, 5),
    loss_type=st.sampled_from(["grpo", "dapo", "bnpo", "dr_grpo", "cispo"]),
    level=st.sampled_from(["token", "sequence", "sequence_token"]),
    mode=st.sampled_from(["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]),
    estimator=st.sampled_from(["k1", "k2", "k3"]),
)  # fmt: skip
def test_nothing_is_ever_not_finite(
    logprob, old, behaviour, reference, advantage, loss_type, level, mode, estimator
):  # fmt: skip
    """However far the policies lie apart, and whatever stands in the padding."""
    nan = float("nan")
    current = torch.tensor([[logprob, -1.0, nan]], requires_grad=True)
    scored = losses.Scored(
        current, torch.zeros(1, 3), torch.tensor([[old, -1.0, nan]]), MASK[:1], torch.tensor([advantage]),
        torch.tensor([[behaviour, nan, nan]]), torch.tensor([[True, False, False]]),
        torch.tensor([[reference, -1.0, nan]]),
    )  # fmt: skip
    config = losses.ObjectiveConfig(
        losses.LOSSES.get(loss_type)(epsilon_high=2.0), importance_sampling_level=level, tis_mode=mode,
        kl_estimator=estimator, use_bias_correction_kl=True, geometric_clip=(0.5, None),
    )  # fmt: skip
    loss = losses.objective(scored, config, losses.Normalizer(2, 1, 10)).loss
    loss.backward()
    assert loss.isfinite() and current.grad is not None and current.grad.isfinite().all()
