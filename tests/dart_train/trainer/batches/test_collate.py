"""Micro-batches: exact ids, branches that see only what they may, images once."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from dart_agent.models.image_patches import VisionSpec
from dart_train.core.train_errors import CorruptDataError
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.image_features import cut_ahead
from tests.helpers.batch_images import image_grid_thw, pixel_values
from tests.helpers.stored_files import image_path

pytestmark = pytest.mark.train


def test_ids_are_those_of_the_record(collator, samples):
    batch = collator(samples)
    flat = batch.input_ids.flatten()
    start = 0
    for row, index in enumerate(batch.sample_index.tolist()):
        sample = samples[index]
        count = len(sample.response_ids)
        places = batch.predict_index[start : start + count]
        assert batch.response_ids[start : start + count].tolist() == list(sample.response_ids)
        assert flat[places[1:]].tolist() == list(sample.response_ids[:-1])
        begin = int(places[0]) - len(sample.prompt_ids) + 1
        assert flat[begin : int(places[0]) + 1].tolist() == list(sample.prompt_ids)
        assert int(batch.mask[row].sum()) == count
        known = batch.behaviour_logprobs[row][batch.behaviour_known[row]].tolist()
        assert known == pytest.approx(list(sample.logprobs))
        start += count


def test_equal_prompts_share_a_row_and_images_are_cut_once(collator, samples, screens):
    batch = collator(samples)
    assert batch.input_ids.shape[0] == 4  # ten samples, four prompts
    assert image_grid_thw(batch) is not None and len(image_grid_thw(batch)) == len(screens)
    assert batch.image_order is not None and batch.image_order.tolist() == [0, 1, 2, 3] or len(batch.image_order) == 4


def test_micro_batches_keep_to_the_budget_and_lose_nothing(collator, samples):
    batches = collator.micro_batches(samples, max_tokens=120)
    assert len(batches) > 1
    for batch in batches:
        assert batch.input_ids.numel() <= 120 or batch.input_ids.shape[0] == 1
    seen = torch.cat([batch.sample_index for batch in batches])
    assert sorted(seen.tolist()) == list(range(len(samples)))
    widths = [batch.input_ids.shape[1] for batch in batches]
    assert widths == sorted(widths, reverse=True)


def test_rows_without_branches_need_no_square_mask(tokens, vision, screens, samples):
    plain = Collator(tokens, vision, ImageCache(screens.__getitem__), share_prompts=False)
    batch = plain(samples)
    assert batch.input_ids.shape[0] == len(batch.layout.segments) == 10
    assert all(segment.seen == 0 for segment in batch.layout.segments)  # a kernel's causal pass, without a mask


def test_positions_are_those_of_the_model(collator, samples, model_dir, tokens):
    from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration

    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(AutoConfig.from_pretrained(model_dir))
    for sample in samples[:4]:
        batch = collator([sample])
        expected, _ = model.model.get_rope_index(
            batch.input_ids,
            mm_token_type_ids=batch.mm_token_type_ids,
            image_grid_thw=image_grid_thw(batch),
            attention_mask=torch.ones_like(batch.input_ids),
        )
        assert torch.equal(batch.position_ids, expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"response_ids": ()}, "at least one token"),
        ({"logprobs": (-1.0,)}, "1 log-probabilities for"),
        ({"image_hashes": ()}, "its images need 0"),
        ({"logprobs": (float("nan"),) * 99}, "99 log-probabilities for"),
    ],
)
def test_broken_samples_are_refused(collator, samples, change, words):
    with pytest.raises(ValueError, match=words):
        collator([replace(samples[0], **change)])


def test_a_special_token_in_a_response_is_refused(collator, samples, tokens):
    response = (tokens.image_pad_id, *samples[0].response_ids[1:])
    with pytest.raises(ValueError, match="never sampled"):
        collator([replace(samples[0], response_ids=response)])


def test_cache_drops_the_least_recently_used():
    loaded: list[str] = []

    def load(name: str) -> np.ndarray:
        loaded.append(name)
        return np.zeros((512, 1024, 1), np.uint8)  # half a MiB

    cache = ImageCache(load, capacity_mb=1)
    for name in "abacab":
        cache.get(name)
    assert loaded == ["a", "b", "c", "b"]


def test_order_of_samples_does_not_matter(collator, samples):
    shuffled = samples.copy()
    random.Random(0).shuffle(shuffled)
    assert collator(shuffled).input_ids.numel() == collator(samples).input_ids.numel()


def test_swapped_images_of_different_sizes_are_refused(collator, screens, make_prompt, tokens):
    """The pads are as many as before: only the length of each run tells."""
    first, *_, last = screens
    sample = Sample(make_prompt("Click", first, last), (first, last), (tokens.im_end_id,))
    assert collator.problem(sample) is None
    swapped = replace(sample, image_hashes=(last, first))
    with pytest.raises(ValueError, match="or its images are not its own"):
        collator([swapped])


def test_swapped_files_are_caught_by_hash(data, screens, vision, tokens, make_prompt):
    """Two screenshots of one size change places on the disk: nothing but their hashes can tell."""
    first, second = list(screens)[:2]
    assert screens[first].shape == screens[second].shape
    data.files.write_images({name: screens[name] for name in (first, second)})
    paths = [image_path(data.files, name) for name in (first, second)]
    contents = [path.read_bytes() for path in paths]
    sample = Sample(make_prompt("Click", first), (first,), (tokens.im_end_id,))
    assert Collator(tokens, vision, ImageCache(data.load_image))([sample]).image_hashes == (first,)
    for path, content in zip(paths, reversed(contents), strict=True):
        path.chmod(0o644)
        path.write_bytes(content)
    with pytest.raises(CorruptDataError, match="its pixels have another hash"):
        Collator(tokens, vision, ImageCache(data.files.read_image))([sample])


def test_a_step_longer_than_the_context_is_refused(tokens, vision, screens, samples):
    limit = samples[1].length
    strict = Collator(tokens, vision, ImageCache(screens.__getitem__), max_length=limit)
    assert strict.problem(samples[1]) is None
    longer = replace(samples[1], response_ids=(*samples[1].response_ids, tokens.im_end_id), logprobs=())
    problem = strict.problem(longer)
    assert problem is not None and problem.reason == "too_long"
    assert f"a step of {limit + 1} tokens is longer than the model's {limit} positions" in problem.text


def test_short_rows_do_not_join_far_longer_ones(collator, tokens):
    lengths = [900, 890, 500, 100, 90]
    made = [Sample((tokens.im_start_id,) * length, (), (tokens.im_end_id,), trajectory=length) for length in lengths]
    widths = [tuple(batch.input_ids.shape) for batch in collator.micro_batches(made, 4000)]
    assert widths == [(2, 900), (1, 500), (2, 100)]


def test_patches_are_cut_once_and_only_when_they_are_needed(tokens, vision, screens, samples, monkeypatch):
    cut: list[tuple[int, ...]] = []
    patchify = VisionSpec.patchify
    monkeypatch.setattr(VisionSpec, "patchify", lambda spec, image: cut.append(image.shape) or patchify(spec, image))
    batches = Collator(tokens, vision, ImageCache(screens.__getitem__), share_prompts=False).micro_batches(samples, 60)
    assert len(batches) > 4 and not cut
    for batch in batches:
        assert (pixel_values(batch) is None) == (not batch.image_hashes)
    assert len(cut) == len(screens)


def test_sizes_of_images_come_from_their_files_beginnings(data, record_group, tokens, vision, screens, samples):
    """A rank need not decode a lease to know its rows: pixels are read when a micro-batch runs."""
    record_group("a")
    sample = Sample.from_step(next(data.trajectories()).steps[0])
    read: list[str] = []

    def load(name: str) -> np.ndarray:
        read.append(name)
        return data.load_image(name)

    collator = Collator(tokens, vision, ImageCache(load, size=data.image_size))
    assert collator.problem(sample) is None
    (batch,) = collator.micro_batches([sample], 1000)
    assert image_grid_thw(batch).tolist() == [list(vision.grid(screens[sample.image_hashes[0]]))]
    assert not read
    assert pixel_values(batch) is not None and read == [sample.image_hashes[0]]


def test_images_that_are_gone_or_no_images_are_named(data, record_group, tokens, vision):
    record_group("a")
    name = next(data.trajectories()).steps[0].image_hashes[0]
    file = image_path(data.files, name)
    file.write_bytes(b"no image")
    with pytest.raises(CorruptDataError, match=name):
        data.image_size(name)
    file.unlink()
    with pytest.raises(CorruptDataError, match=f"{name}.*there is no such file"):
        data.image_size(name)


def test_an_image_of_an_absurd_shape_is_left_out_by_name(tokens, vision, samples):
    images = ImageCache(lambda name: np.zeros((2, 900, 3), np.uint8))
    problem = Collator(tokens, vision, images).problem(samples[0])
    assert problem is not None and problem.reason == "image_size" and "aspect ratio of 900x2" in problem.text


def test_an_image_above_the_processors_bound_is_shrunk_as_the_engine_shrinks_it(tokens, samples, make_prompt):
    vision = VisionSpec(temporal_patch_size=1, min_pixels=28 * 28, max_pixels=6 * 28 * 28)
    large = np.zeros((300, 500, 3), np.uint8)
    collator = Collator(tokens, vision, ImageCache(lambda name: large))
    pads = [tokens.image_pad_id] * vision.num_tokens(vision.resize(large))
    assert 0 < len(pads) <= 6
    prompt = (tokens.vision_start_id, *pads, tokens.vision_end_id)
    sample = replace(samples[0], prompt_ids=prompt, image_hashes=("0" * 32,))
    assert collator.problem(sample) is None
    as_it_was = [tokens.image_pad_id] * (300 // 28 * (500 // 28))
    unbounded = replace(sample, prompt_ids=(tokens.vision_start_id, *as_it_was, tokens.vision_end_id))
    assert collator.problem(unbounded).reason == "image_tokens"


def test_patches_of_the_next_micro_batch_are_cut_while_one_runs(tokens, vision, screens, samples):
    cut, going = [], threading.Event()

    def load(name: str) -> np.ndarray:
        cut.append((name, threading.current_thread().name))
        return screens[name]

    collator = Collator(tokens, vision, ImageCache(load, size=lambda name: screens[name].shape[:2]))
    batches = [collator([sample]) for sample in samples[:2]]
    running = cut_ahead(batches, None)
    first = next(running)
    for _ in range(1000):
        if len(cut) == sum(len(batch.image_hashes) for batch in batches):
            break
        going.wait(0.01)
    assert {name for name, _ in cut} == {name for batch in batches for name in batch.image_hashes}
    assert all(thread.startswith("patches") for _, thread in cut)
    expected = torch.cat([torch.from_numpy(vision.patchify(screens[name])) for name in first.image_hashes])
    assert torch.equal(pixel_values(first), expected)
    assert next(running) is batches[1] and next(running, None) is None
    assert pixel_values(batches[1]) is not None
    assert len(cut) == len({name for batch in batches for name in batch.image_hashes})
