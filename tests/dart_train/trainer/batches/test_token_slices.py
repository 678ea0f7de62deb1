"""Slices of a micro-batch are the micro-batch: every token, image pad and response is in one of them, in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dart_train.trainer.batches.collator import Collator, ImageCache
from dart_train.trainer.batches.micro_batch import MicroBatch
from dart_train.trainer.batches.token_slices import slice_of
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.step_cost import StepCost

pytestmark = pytest.mark.train

LAYOUTS = [{}, {"pack_rows": True}, {"share_prompts": False}, {"distinct_images": False}, {"padding_side": "left"}]


def pads_of(batch: MicroBatch) -> list[tuple[str, int]]:
    """The image and the number of the feature that each pad takes, in order."""
    if batch.image_order is None:
        return []
    names = [batch.image_hashes[image] for image in batch.image_order.tolist()]
    found = [(name, number) for name in names for number in range(batch.patches.num_tokens(name))]
    return found if batch.part is None else found[slice(*batch.part.features)]


@pytest.mark.parametrize("options", LAYOUTS)
@pytest.mark.parametrize("count", [2, 3, 7])
def test_all_slices_are_the_micro_batch(options, count, samples, tokens, vision, screens):
    collator = Collator(tokens, vision, ImageCache(screens.__getitem__), **options)
    for whole in collator.micro_batches(samples, 150):
        parts = [slice_of(whole, place, count) for place in range(count)]
        assert {part.input_ids.shape for part in parts} == {(1, -(-whole.input_ids.numel() // count))}
        places = whole.input_ids.numel()
        for name in ("input_ids", "mm_token_type_ids", "position_ids"):
            joined = torch.cat([getattr(part, name) for part in parts], -1).squeeze(-2)
            assert torch.equal(joined[..., :places], getattr(whole, name).flatten(-2)), name
            assert not joined[..., places:].any()
        assert [pad for part in parts for pad in pads_of(part)] == pads_of(whole)
        for part in parts:
            assert len(pads_of(part)) == int(part.mm_token_type_ids.sum())
            assert {name for name, _ in pads_of(part)} == set(part.image_hashes)
            assert part.layout.places == count * part.input_ids.numel()
            assert torch.equal(part.mask, whole.mask)


@pytest.mark.parametrize("count", [2, 5])
def test_every_response_token_is_predicted_once(count, samples, collator):
    whole = collator(samples)
    length = -(-whole.input_ids.numel() // count)
    seen: list[int] = []
    for place in range(count):
        part = slice_of(whole, place, count)
        assert part.part is not None and part.part.responses == whole.num_tokens
        mine = part.part.predicted
        assert torch.equal(part.response_ids, whole.response_ids[mine])
        assert torch.equal(part.predict_index + place * length, whole.predict_index[mine])
        seen += mine.tolist()
    assert sorted(seen) == list(range(whole.num_tokens))


def test_a_row_of_fewer_tokens_than_ranks_leaves_some_without_any(samples, collator):
    whole = collator([replace(samples[2], prompt_ids=samples[2].prompt_ids[:2], response_ids=(5,), logprobs=())])
    parts = [slice_of(whole, place, 4) for place in range(4)]
    assert [part.num_tokens for part in parts] == [0, 1, 0, 0]
    assert [part.part.tokens for part in parts if part.part is not None] == [1, 1, 0, 0]


def test_recorded_experts_stay_with_their_tokens(samples, collator):
    whole = collator(samples)
    routed = replace(whole, routing=torch.arange(whole.num_tokens)[:, None])
    for place in range(3):
        part = slice_of(routed, place, 3)
        assert part.part is not None and part.routing is not None
        assert torch.equal(part.routing[:, 0], part.part.predicted)


def test_one_rank_has_the_batch_as_it_is(samples, collator):
    whole = collator(samples)
    assert slice_of(whole, 0, 1) is whole and whole.slices == 1


def test_what_a_step_costs_is_divided(samples, collator):
    """Operations and tokens of all slices are those of the whole, images left out: one at a cut is run twice."""
    size, whole = ModelSize.published("7b"), replace(collator(samples), image_hashes=(), image_order=None)
    costs = []
    for parts in ([whole], [slice_of(whole, place, 3) for place in range(3)]):
        cost = StepCost(size, adapter=False, trains_tower=False)
        for part in parts:
            cost.add_pass(part, "policy", trained=True, keeps_features=False)
        costs.append(cost)
    assert costs[1].tokens == costs[0].tokens
    assert costs[1].flops == pytest.approx(costs[0].flops)
