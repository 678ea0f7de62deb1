"""Steps merged by prefix against the same steps in rows of their own: equal losses and gradients."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dart_agent.episodes.screenshots import image_hash
from dart_lab.train.made_up_steps import Window, record_steps
from dart_train.trainer import losses
from dart_train.trainer.attention import kernels
from dart_train.trainer.batches.collator import Collator, ImageCache, MicroBatch, Sample, equal_counts
from dart_train.trainer.batches.samples import chains, rows
from dart_train.trainer.grpo_trainer import load_model
from dart_train.trainer.image_features import ImageFeatures, features_pay
from dart_train.trainer.policy_logprobs import response_logprobs, tower_features

pytestmark = pytest.mark.train

SLIDING = Window(screenshots=5)
BLOCK = Window(screenshots=5, block=4)
CONFIG = losses.ObjectiveConfig(losses.GRPO(epsilon=0.05, epsilon_high=0.05), beta=0.1, entropy_coef=0.01)


@pytest.fixture(scope="module")
def model(model_dir) -> Any:
    model = load_model(model_dir)
    torch.manual_seed(0)
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)
    return model


@pytest.fixture(scope="module")
def screen_files() -> dict[str, np.ndarray]:
    """Many small screenshots of one size by hash: a swap of two shows in nothing but their hashes."""
    rng = np.random.default_rng(5)
    images = [rng.integers(0, 256, (56, 56, 3), dtype=np.uint8) for _ in range(16)]
    return {image_hash(image): image for image in images}


@pytest.fixture
def trajectory(tokens, vision, screen_files) -> Callable[..., list[Sample]]:
    """Samples of a trajectory of so many steps, with log-probabilities and advantages that differ."""

    def make(count: int, window: Window = SLIDING, *, number: int = 0, first: int = 0) -> list[Sample]:
        hashes = list(screen_files)[first : first + count]
        texts = ["Action: wait()", "Action: click(start_box='(12,34)')", "Thought: go on\nAction: finished()"]
        responses = [tokens.response(texts[(step + number) % 3]) for step in range(count)]
        pads = [vision.num_tokens(screen_files[name]) for name in hashes]
        steps = record_steps(tokens, "Click on the tab", hashes, pads, responses, window)
        rng = random.Random(number)
        return [
            replace(
                Sample.from_step(step, advantage=(-1.0) ** number * (1 + index), group=number // 2, trajectory=number),
                logprobs=tuple(-6 - rng.random() for _ in step.response_ids),
            )
            for index, step in enumerate(steps)
        ]

    return make


@pytest.fixture
def collators(tokens, vision, screen_files) -> Callable[..., Collator]:
    images = ImageCache(screen_files.__getitem__)
    return lambda **options: Collator(tokens, vision, images, **options)


def evaluate(
    model: Any, batches: Sequence[MicroBatch], samples: Sequence[Sample], suppressed: Sequence[int],
    *, features: ImageFeatures | None = None,
) -> tuple[float, Tensor, dict[int, list[float]]]:  # fmt: skip
    """Loss and gradient of the whole objective, and each sample's log-probabilities."""
    normalizer = losses.Normalizer(sum(len(sample.response_ids) for sample in samples), len(samples))
    model.zero_grad()
    total, found = 0.0, {}
    for batch in batches:
        logprobs, entropies = response_logprobs(model, batch, suppressed, features=features)
        shifted = logprobs.detach() - 0.03 * torch.sin(torch.arange(logprobs.shape[1]))
        scored = losses.Scored(
            logprobs, entropies, shifted, batch.mask, batch.advantages, batch.behaviour_logprobs,
            batch.behaviour_known, shifted - 0.1, weights=batch.weights,
        )  # fmt: skip
        loss = losses.objective(scored, CONFIG, normalizer).loss
        loss.backward()
        total += float(loss)
        for row, index in enumerate(batch.sample_index.tolist() if not batch.fills_up else []):
            found[index] = logprobs[row][batch.mask[row]].tolist()
    if features is not None:
        features.backward()
    gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return total, torch.cat(gradients), found


def assert_same(left: tuple[float, Tensor, dict], right: tuple[float, Tensor, dict]) -> None:
    assert left[0] == pytest.approx(right[0], abs=1e-5)
    assert right[1].abs().max() > 1e-2
    torch.testing.assert_close(left[1], right[1], atol=1e-5, rtol=1e-5)
    assert left[2].keys() == right[2].keys()
    for index, values in left[2].items():
        assert values == pytest.approx(right[2][index], abs=1e-5)


@pytest.mark.parametrize("window", [SLIDING, BLOCK], ids=["sliding", "block"])
@pytest.mark.parametrize("count", range(1, 13))
def test_merged_rows_equal_separate_rows(model, trajectory, collators, tokens, count, window):
    samples = trajectory(count, window)
    separate = collators(share_prompts=False, merge_prefixes=False).micro_batches(samples, 1 << 20)
    merged = collators().micro_batches(samples, 1 << 20)
    expected = evaluate(model, separate, samples, tokens.suppressed_ids)
    assert_same(evaluate(model, merged, samples, tokens.suppressed_ids), expected)
    assert sum(len(batch.input_ids) for batch in separate) == count
    rows_in_all = sum(len(batch.input_ids) for batch in merged)
    if window is SLIDING:
        assert rows_in_all == 1 + max(0, count - 5)  # one until the window slides, then one a step
    else:
        assert rows_in_all == 1 + -(-max(0, count - 5) // 4)  # one for every block of four


@pytest.mark.parametrize(
    "options",
    [
        {"padding_side": "left"},
        {"padding_side": "left", "share_prompts": False},
        {"share_prompts": False},
        {"merge_prefixes": False},
        {"distinct_images": False},
        {"pack_rows": True},
        {"pack_rows": True, "share_prompts": False, "merge_prefixes": False},
    ],
    ids=str,
)
def test_layout_changes_nothing(model, trajectory, collators, tokens, options, monkeypatch):
    monkeypatch.setattr(kernels, "STRIP", 7)  # so that branches take several strips
    samples = [sample for number in range(4) for sample in trajectory(3 + 2 * number, number=number)]
    plain = collators(share_prompts=False, merge_prefixes=False).micro_batches(samples, 1 << 20)
    expected = evaluate(model, plain, samples, tokens.suppressed_ids)
    for max_tokens in (1 << 20, 300):
        batches = collators(**options).micro_batches(samples, max_tokens)
        assert_same(evaluate(model, batches, samples, tokens.suppressed_ids), expected)


def test_order_and_number_of_micro_batches_change_nothing(model, trajectory, collators, tokens):
    samples = [sample for number in range(4) for sample in trajectory(2 + 2 * number, BLOCK, number=number)]
    expected = evaluate(model, collators().micro_batches(samples, 1 << 20), samples, tokens.suppressed_ids)
    order = list(range(len(samples)))
    random.Random(1).shuffle(order)
    shuffled = [samples[index] for index in order]
    parts = collators().micro_batches(shuffled, 120)
    assert len(parts) >= 4
    random.Random(2).shuffle(parts)
    loss, gradient, found = evaluate(model, parts, shuffled, tokens.suppressed_ids)
    assert_same((loss, gradient, {order[place]: values for place, values in found.items()}), expected)


def test_rows_that_fill_up_change_nothing_but_run(model, trajectory, collators, tokens):
    samples = [sample for number in range(2) for sample in trajectory(4, number=number)]
    batches = collators().micro_batches(samples, 200)
    filled = equal_counts(batches, len(batches) + 3)
    assert len(filled) == len(batches) + 3 and [batch.fills_up for batch in filled[-3:]] == [True] * 3
    broken = replace(filled[-1], behaviour_logprobs=torch.full_like(filled[-1].behaviour_logprobs, torch.nan))
    expected = evaluate(model, batches, samples, tokens.suppressed_ids)
    assert_same(evaluate(model, [*filled, broken], samples, tokens.suppressed_ids), expected)
    with pytest.raises(ValueError, match="every rank needs one of its own"):
        equal_counts([], 2)
    with pytest.raises(ValueError, match="largest number of any rank"):
        equal_counts(batches, len(batches) - 1)


def test_features_of_a_whole_batch_give_the_same_gradient(model, trajectory, collators, tokens):
    samples = [sample for number in range(3) for sample in trajectory(8, number=number, first=number)]
    batches = collators(share_prompts=False).micro_batches(samples, 150)
    assert len(batches) > 3 and features_pay(batches, trainable=True)
    expected = evaluate(model, batches, samples, tokens.suppressed_ids)
    features = ImageFeatures(partial(tower_features, model), trainable=True)
    calls = count_tower_images(model)
    assert_same(evaluate(model, batches, samples, tokens.suppressed_ids, features=features), expected)
    distinct = {name for sample in samples for name in sample.image_hashes}
    assert calls() == 2 * len(distinct)  # once for the features, once for their gradient
    frozen = ImageFeatures(partial(tower_features, model), trainable=False)
    model.zero_grad()
    loss, gradient, found = evaluate(model, batches, samples, tokens.suppressed_ids, features=frozen)
    assert loss == pytest.approx(expected[0], abs=1e-5) and len(gradient) < len(expected[1])
    assert all(parameter.grad is None for parameter in model.model.visual.parameters())


def count_tower_images(model: Any) -> Callable[[], int]:
    """A counter of images that run through the vision tower from now on."""
    counts: list[int] = []
    hook = model.model.visual.register_forward_pre_hook(
        lambda module, args, kwargs: counts.append(len(kwargs["grid_thw"])), with_kwargs=True
    )

    def total() -> int:
        hook.remove()
        return sum(counts)

    return total


@pytest.mark.parametrize("images", [8, 3, 1])
def test_features_that_make_room_give_the_same_gradient(model, trajectory, collators, tokens, images):
    """What is kept never exceeds the budget by more than a micro-batch; what left is computed anew."""
    samples = [sample for number in range(3) for sample in trajectory(8, number=number, first=number)]
    batches = collators(share_prompts=False).micro_batches(samples, 150)
    expected = evaluate(model, batches, samples, tokens.suppressed_ids)
    whole = ImageFeatures(partial(tower_features, model), trainable=True)
    evaluate(model, batches, samples, tokens.suppressed_ids, features=whole)
    distinct = {name for sample in samples for name in sample.image_hashes}
    each = whole.peak_bytes / len(distinct)
    features = ImageFeatures(partial(tower_features, model), trainable=True, budget_bytes=int(images * each))
    calls = count_tower_images(model)
    assert_same(evaluate(model, batches, samples, tokens.suppressed_ids, features=features), expected)
    most = max(len(set(batch.image_hashes)) for batch in batches)
    assert features.peak_bytes <= 1.01 * max(images, most) * each < whole.peak_bytes
    assert calls() > 2 * len(distinct) - (images == 8)


def test_features_are_kept_as_the_tower_makes_them(model, trajectory, collators, tokens):
    """bfloat16 under mixed precision, and nothing of the tower's larger output with them."""
    samples = trajectory(8)
    batches = collators(share_prompts=False).micro_batches(samples, 150)
    mixed = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    halves = ImageFeatures(partial(tower_features, model), trainable=False, autocast=mixed)
    wholes = ImageFeatures(partial(tower_features, model), trainable=False)
    for batch in batches:
        given = halves.of(batch)
        assert {item.dtype for item in given} == {torch.float32}
        torch.testing.assert_close(given, wholes.of(batch), atol=0.1, rtol=0.1)
    kept = halves.kept.values()
    assert {item.dtype for item in kept} == {torch.bfloat16}
    assert sum(item.untyped_storage().nbytes() for item in kept) == halves.held_bytes == wholes.held_bytes // 2


def test_cached_features_pay_only_where_images_recur(trajectory, collators):
    once = collators().micro_batches(trajectory(4), 1 << 20)
    assert not features_pay(once, trainable=True)
    assert features_pay(once, trainable=True, scoring_passes=2)
    assert not features_pay(once, trainable=False) and features_pay(once * 2, trainable=False)


def test_cached_features_do_not_pay_where_every_image_leaves_before_it_recurs(trajectory, collators):
    """An image costs 4 each time that it comes back; without a cache it would cost 3."""
    parts = [collators().micro_batches(trajectory(1, first=number), 1 << 20) for number in range(6)]
    once = [batch for part in parts for batch in part]
    (patches,) = {math.prod(batch.patches.grid(batch.image_hashes[0])) for batch in once}
    assert features_pay(once * 2, trainable=True, capacity=6 * patches)
    assert not features_pay(once * 2, trainable=True, capacity=5 * patches)
    beside = [batch for batch in once for _ in range(2)]
    assert features_pay(beside, trainable=True, capacity=patches)


def test_swapped_images_are_not_merged(trajectory, screen_files):
    """Two images of one size swapped: the ids are the same, so only the hashes can tell."""
    samples = trajectory(3)
    first, second, third = samples[2].image_hashes
    swapped = replace(samples[2], image_hashes=(second, first, third))
    assert [len(chain.samples) for chain in chains(samples)] == [3]
    assert [chain.samples for chain in chains([samples[0], samples[1], swapped])] == [[0, 1], [2]]


def test_swapped_images_change_the_result(model, trajectory, collators, tokens):
    samples = trajectory(2)
    swapped = replace(samples[1], image_hashes=samples[1].image_hashes[::-1])
    own = evaluate(model, [collators()([samples[1]])], samples, tokens.suppressed_ids)
    other = evaluate(model, [collators()([swapped])], samples, tokens.suppressed_ids)
    assert own[2][0] != pytest.approx(other[2][0], abs=1e-4)


def test_one_changed_id_is_not_merged(trajectory):
    samples = trajectory(4)
    response = samples[1].response_ids
    samples[1] = replace(samples[1], response_ids=(response[0] + 1, *response[1:]))
    assert [chain.samples for chain in chains(samples)] == [[0, 1], [2, 3]]


def test_steps_of_different_trajectories_are_not_merged(trajectory):
    samples = trajectory(2)
    samples[1] = replace(samples[1], trajectory=9)
    assert len(chains(samples)) == 2


def test_chains_share_a_row_however_much_they_add(trajectory):
    """A branch costs what it adds: it sees its prompt and itself, and no mask of the whole row is made."""
    samples = [sample for number in range(4) for sample in trajectory(4, number=number)]
    (row,) = rows(samples, 1 << 20)
    assert len(row.chains) == 4
    apart = rows(samples, 1 << 20, share=False)
    assert row.length == sum(each.length for each in apart) - 3 * len(samples[0].prompt_ids)
    starts = [trajectory(1, number=number)[0] for number in range(4)]
    assert [len(row.chains) for row in rows(starts, 1 << 20)] == [4]


@pytest.mark.parametrize("window", [SLIDING, BLOCK], ids=["sliding", "block"])
def test_continuations_of_a_fork_are_trained_on_as_their_whole_episodes_would_be_behind_it(
    model, tokens, vision, screen_files, collators, window
):
    """Against whole episodes in rows of their own, whose steps before the fork have a weight of 0."""
    texts = ["Action: wait()", "Action: click(start_box='(12,34)')", "Thought: go on\nAction: finished()"]
    fork, ends = 3, (1, 2, 4)
    names = list(screen_files)
    whole: list[Sample] = []
    behind: list[Sample] = []
    for number, more in enumerate(ends):
        hashes = [*names[: fork + 1], *names[fork + 1 + number : fork + number + more]]
        places = [place if place < fork else place + number for place in range(fork + more)]
        responses = [tokens.response(texts[place % 3]) for place in places]
        pads = [vision.num_tokens(screen_files[name]) for name in hashes]
        steps = record_steps(tokens, "Click on the tab", hashes, pads, responses, window)
        for place, step in enumerate(steps):
            sample = Sample.from_step(step, advantage=(-1.0) ** number * (1 + place), trajectory=number)
            sample = replace(sample, logprobs=(-6.5,) * len(step.response_ids), weight=float(place >= fork))
            whole.append(sample)
            behind += [sample] * (place >= fork)
    separate = collators(share_prompts=False, merge_prefixes=False).micro_batches(whole, 1 << 20)
    expected = evaluate(model, separate, behind, tokens.suppressed_ids)
    shared = collators().micro_batches(behind, 1 << 20)
    found = evaluate(model, shared, behind, tokens.suppressed_ids)
    order = [place for place, sample in enumerate(whole) if sample.weight]
    assert_same(found, (expected[0], expected[1], {new: expected[2][old] for new, old in enumerate(order)}))
    first = len({sample.prompt_ids for sample in behind if len(sample.prompt_ids) == len(behind[0].prompt_ids)})
    assert first == 1 and sum(row.length for row in rows(behind, 1 << 20)) < sum(one.length for one in behind)
