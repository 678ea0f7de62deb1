"""Kernels of attention: one result in every layout, few calls in the tower, no square masks, refusals by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dart_lab.train.bench_models import tower_of_7b
from dart_lab.train.parity_bench import Calls
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.attention import kernels, model_attention
from dart_train.trainer.attention.kernels import Attention, Layout, at_hand, check_kernel
from dart_train.trainer.attention.segments import Segment, bounds, joined
from dart_train.trainer.policy_logprobs import response_logprobs
from tests.helpers.batch_images import image_grid_thw, pixel_values

pytestmark = pytest.mark.train

CPU = torch.device("cpu")
# A prompt with three branches, of which one has one token, and a plain row after it; then padding.
SEGMENTS = [Segment(0, 20), Segment(20, 33, 0, 20), Segment(33, 34, 0, 20), Segment(34, 47, 0, 20), Segment(47, 60)]
PLACES = 64


def states(heads: int = 4, shared: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, count, PLACES, 8, generator=generator, dtype=torch.float64).requires_grad_()
        for count in (heads, shared, shared)
    ]


def by_a_square_mask(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The definition, place by place."""
    found = bounds(SEGMENTS, PLACES)
    allowed = torch.zeros(PLACES, PLACES, dtype=torch.bool)
    for place in range(PLACES):
        allowed[place, found.start[place] : place + 1] = True
        allowed[place, found.seen_start[place] : found.seen_stop[place]] = True
    return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, enable_gqa=True).transpose(1, 2)


@pytest.mark.parametrize("strip", [5, 256])
def test_segments_give_what_a_square_mask_gives(monkeypatch, strip):
    monkeypatch.setattr(kernels, "STRIP", strip)
    real = slice(0, 60)
    ours, theirs = states(), states()
    found = Attention(Layout(SEGMENTS, PLACES))(*ours, None)[:, real]
    expected = by_a_square_mask(*theirs)[:, real]
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for result in (found, expected):
        (result * weights).sum().backward()
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left.grad, right.grad, atol=1e-12, rtol=0)


def test_flex_attention_gives_the_same():
    found = [state.detach().float() for state in states(shared=4)]
    with torch.no_grad():
        flex = Attention(Layout(SEGMENTS, PLACES), "flex_attention")(*found, None)
        sdpa = Attention(Layout(SEGMENTS, PLACES))(*found, None)
    torch.testing.assert_close(flex[:, :60], sdpa[:, :60], atol=1e-6, rtol=0)


def test_what_kernels_of_variable_length_are_given_means_the_same():
    """FlashAttention's definition in plain PyTorch: each sequence causal, aligned at its lower right."""
    query, key, value = (state[0].transpose(0, 1) for state in states(shared=4))
    plan = joined(SEGMENTS)
    parts = []
    for number in range(len(SEGMENTS)):
        queries = plan.queries[plan.query_ends[number] : plan.query_ends[number + 1]]
        keys = plan.keys[plan.key_ends[number] : plan.key_ends[number + 1]]
        own = [x.transpose(0, 1) for x in (query[queries], key[keys], value[keys])]
        allowed = torch.ones(len(queries), len(keys), dtype=torch.bool).tril(len(keys) - len(queries))
        parts.append(F.scaled_dot_product_attention(*own, attn_mask=allowed).transpose(0, 1))
    found = torch.zeros_like(query).index_copy(0, torch.from_numpy(plan.queries), torch.cat(parts))
    expected = by_a_square_mask(*(state[None].transpose(1, 2) for state in (query, key, value)))[0]
    torch.testing.assert_close(found[:60], expected[:60], atol=1e-12, rtol=0)


def test_masks_grow_with_the_row_and_not_with_its_square():
    sizes = []
    for length in (2048, 4096, 8192):
        half = length // 2
        layout = Layout([Segment(0, half), Segment(half, length, 0, half)], length)
        with torch.no_grad():
            Attention(layout)(*(torch.zeros(1, 1, length, 4) for _ in range(3)), None)
        sizes.append(layout.mask_bytes)
    assert sizes[1] == 2 * sizes[0] and sizes[2] == 4 * sizes[0] > 0


@pytest.mark.thorough
def test_the_published_tower_makes_few_calls_for_a_screenshot():
    """The shape of 7B's tower at 1932x1092, with narrow layers: 5,044 calls as published, now at most two a block."""
    tower = tower_of_7b(width=32)
    grid = torch.tensor([[1, 78, 138]])
    pixels = torch.zeros(78 * 138, 3 * 2 * 14 * 14)
    tower.config._attn_implementation = model_attention.TOWER
    with torch.no_grad(), Calls() as ours:
        found = tower(pixels, grid_thw=grid).pooler_output
    tower.config._attn_implementation = "sdpa"
    with torch.no_grad(), Calls() as theirs:
        expected = tower(pixels, grid_thw=grid).pooler_output
    assert theirs.count == 5044
    assert ours.count == 60
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_windows_of_all_sizes_as_batches():
    lengths = [64, 64, 24, 64, 48, 9, 64]
    ends = torch.tensor(np.cumsum([0, *lengths]))
    own = [torch.randn(1, 2, sum(lengths), 8, dtype=torch.float64) for _ in range(3)]
    expected = torch.cat(
        [F.scaled_dot_product_attention(*part) for part in zip(*(x.split(lengths, 2) for x in own), strict=True)], 2
    )
    found = model_attention.windows_as_batches(*own, ends, None)
    torch.testing.assert_close(found, expected.transpose(1, 2), atol=1e-12, rtol=0)


def test_kernels_that_cannot_train_here_are_refused_by_name():
    check_kernel("sdpa", CPU, half=False)
    for name, words in (
        ("flash_attention_2", "trains on a GPU only, and this is cpu"),
        ("flex_attention", "trains on a GPU only"),
        ("fastest", "'fastest' is unknown; choose one of sdpa, "),
    ):
        with pytest.raises(TrainingError, match=words):
            check_kernel(name, CPU, half=True)
    with pytest.raises(TrainingError, match="half precision only"):
        check_kernel("flash_attention_3", torch.device("cuda"), half=False)
    with pytest.raises(TrainingError, match="needs the package flash-attn, which is not installed"):
        check_kernel("flash_attention_2", torch.device("cuda"), half=True)
    assert at_hand(CPU, torch.float32) == ["sdpa", "flex_attention"]


def test_a_kernel_is_refused_before_the_model_is_loaded(make_config, data, tmp_path):
    from dart_train.trainer.grpo_trainer import DartGRPOTrainer

    with pytest.raises(TrainingError, match="attention='flash_attention_2' trains on a GPU only"):
        DartGRPOTrainer(tmp_path / "no such model", make_config(attention="flash_attention_2"), data)


def test_a_model_that_was_taken_over_still_runs_as_published(model_dir, collator, samples, tokens):
    from dart_train.trainer.weights.model_loading import load_model

    model = load_model(model_dir).eval()
    batch = collator([samples[1]])
    with torch.no_grad():
        response_logprobs(model, batch, tokens.suppressed_ids)
        values = {
            "input_ids": batch.input_ids.repeat(2, 1), "mm_token_type_ids": batch.mm_token_type_ids.repeat(2, 1),
            "pixel_values": pixel_values(batch).repeat(2, 1), "image_grid_thw": image_grid_thw(batch).repeat(2, 1),
        }  # fmt: skip
        mask = torch.ones_like(values["input_ids"])
        mask[1, -3:] = 0  # padding is hidden here, too
        ours = model(**values, attention_mask=mask).logits
        with model_attention.as_published(model):
            expected = model(**values, attention_mask=mask).logits
    torch.testing.assert_close(ours[0], expected[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(ours[1, :-3], expected[1, :-3], atol=1e-5, rtol=0)
