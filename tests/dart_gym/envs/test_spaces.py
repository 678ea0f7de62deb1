"""The spaces: members, batches, pickles, and what they cost."""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
import tracemalloc

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, create_shared_memory, read_from_shared_memory, write_to_shared_memory

from dart_gym.core.actions import Click, Done, Type, as_action
from dart_gym.envs.spaces import ActionSpace, Screenshot, UnicodeText, observation_space


def test_a_screenshot_space_has_frames_of_its_size():
    space = Screenshot(6, 4)
    assert isinstance(space, spaces.Box) and space.shape == (6, 4, 3) and space.dtype == np.uint8
    assert space.contains(space.sample())
    assert not space.contains(np.zeros((6, 4, 3), np.float32))
    assert not space.contains(np.zeros((4, 6, 3), np.uint8))
    assert not space.contains([[1]])
    assert space == Screenshot(6, 4) != Screenshot(4, 6)


def test_a_batch_of_64_full_hd_screens_costs_nothing():
    tracemalloc.start()
    space = batch_space(Screenshot(1080, 1920), 64)
    copy = pickle.loads(pickle.dumps(space))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert space.shape == (64, 1080, 1920, 3) and copy == space
    assert peak < 1 << 20 and len(pickle.dumps(space)) < 2000


@pytest.mark.parametrize("text", ["", "中文", "a\nb\t", "🙂" * 10])
def test_a_text_may_be_any_text(text):
    assert UnicodeText().contains(text)


def test_a_text_space_has_a_limit_and_short_samples():
    space = UnicodeText(3)
    assert not space.contains("abcd") and not space.contains(5)
    assert all(space.contains(space.sample()) for _ in range(20))
    assert space == UnicodeText(3) != UnicodeText(4)


def test_action_samples_are_members_and_reproducible():
    space, twin = ActionSpace(224, 168, seed=1), ActionSpace(224, 168, seed=1)
    samples = [space.sample() for _ in range(100)]
    assert samples == [twin.sample() for _ in range(100)]
    assert all(space.contains(action) for action in samples)
    assert len({type(action) for action in samples}) >= 4
    assert all(0 <= a.x < 168 and 0 <= a.y < 224 for a in samples if isinstance(a, Click))


def test_actions_are_taken_as_dicts_too():
    space = ActionSpace(10, 10)
    assert space.contains({"kind": "click", "x": 1, "y": 2}) and not space.contains({"kind": "clik"})
    assert not space.contains("click(1, 2)")
    assert as_action({"kind": "type", "text": "é"}) == Type("é")
    with pytest.raises(TypeError, match="dart_gym Action"):
        as_action("click")  # type: ignore[arg-type]


def test_actions_survive_json():
    space = ActionSpace(10, 10)
    actions = [Click(1, 2), Type("中"), Done()]
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(actions)))) == actions


def test_observations_of_environments_can_be_batched():
    space = batch_space(observation_space(4, 4), 2)
    assert space.contains(
        {"screenshot": np.zeros((2, 4, 4, 3), np.uint8), "instruction": ("a", "中"), "action_error": ("", "")}
    )


def test_texts_of_other_processes_are_those_of_now_and_copies_keep_theirs():
    space = UnicodeText(5)
    memory = create_shared_memory(space, 2)
    texts = read_from_shared_memory(space, memory, 2)
    assert tuple(texts) == ("", "")
    for index, text in ((0, "abc"), (1, "中\ud800😀é\0"), (0, "a")):
        writer = multiprocessing.get_context("spawn").Process(
            target=write_to_shared_memory, args=(space, index, text, memory)
        )
        writer.start()
        writer.join()
    before = copy.deepcopy({"instruction": texts})
    write_to_shared_memory(space, 1, "", memory)
    assert before == {"instruction": ("a", "中\ud800😀é\0")} and tuple(texts) == ("a", "")
    with pytest.raises(ValueError, match="broadcast"):
        write_to_shared_memory(space, 1, "x" * 21, memory)


def test_what_is_no_array_stays_beside_what_is_flattened():
    space = observation_space(2, 2)
    flat = spaces.flatten_space(space)
    seen = {"screenshot": np.arange(12, dtype=np.uint8).reshape(2, 2, 3), "instruction": "中", "action_error": ""}
    flattened = spaces.flatten(space, seen)
    assert flat["screenshot"].shape == (12,) and flat.contains(flattened) and flattened["instruction"] == "中"
    assert np.array_equal(spaces.unflatten(space, flattened)["screenshot"], seen["screenshot"])
