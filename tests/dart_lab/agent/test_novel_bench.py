"""The benchmark of novel applications: what is held out shares no state with what is learnt, and gains are counted."""

from __future__ import annotations

import numpy as np
import pytest
from dart_gym_grounding_data.screen_elements import Element, Screen

from dart_agent.grounding.candidate import Box
from dart_lab.agent.novel_bench import WIDTH, Sizes, gain, measure, mixed, parted

NAMES = ("Open", "Save", "Print", "Undo", "Paste", "Find", "Zoom", "Help", "About")


def drawn(number: int, seed: int = 0) -> Screen:
    """A screen of a menu that is always the same, and of a button of its own."""
    image = np.full((120, 160, 3), 255, np.uint8)
    image[4:20, 8:40] = np.random.default_rng(7).integers(0, 256, (16, 32, 3))
    image[60:80, 40:120] = np.random.default_rng((seed, number)).integers(0, 256, (20, 80, 3))
    menu, button = (
        Element("menu", "File", Box(8, 4, 40, 20)),
        Element("push-button", NAMES[number], Box(40, 60, 120, 80)),
    )
    return Screen(image, (menu, button), ("Demo",))


def test_a_state_is_learnt_or_asked_about_and_not_both():
    part = parted("demo", [drawn(number) for number in range(9)])
    learnt, asked = ({item.name for item in items} for items in (part.learn, part.ask))
    assert learnt.isdisjoint(asked) and len(asked) == 3 and len(learnt) == 6
    buttons = [item.description for item in part.ask if "File" not in item.description]
    assert not {item.description for item in part.learn} & set(buttons)


def test_what_the_collector_would_call_seen_before_is_not_unseen():
    part = parted("demo", [drawn(number) for number in range(9)])
    assert [not new for new in part.unseen] == ["File" in item.description for item in part.ask]


def test_boxes_keep_their_place_on_the_smaller_screen():
    item = next(item for item in parted("demo", [drawn(0), drawn(1), drawn(2)]).learn if "File" in item.description)
    share = WIDTH / 160
    assert item.screen == (WIDTH, 120 * share) and item.screenshot().shape[:2] == (120 * share, WIDTH)
    assert item.boxes == (Box(8 * share, 4 * share, 40 * share, 20 * share),)


def test_old_and_new_are_mixed_evenly():
    old, new = parted("old", [drawn(n) for n in range(9)]).learn, parted("new", [drawn(0, 1)]).learn
    both = mixed(old, new)
    count = sum(item.application == "new" for item in both)
    assert len(both) - count == len(old) and abs(count - len(old)) <= len(new)


def test_a_gain_is_in_points_with_the_interval_of_screens():
    before, after = [False] * 8, [True, True, False, False] * 2
    value, low, high = gain(before, after, list("aabbccdd"))
    assert value == 50 and low == 0 and high == 100
    assert gain(before, before, list("aabbccdd")) == (0, 0, 0)


@pytest.mark.train
@pytest.mark.slow
def test_it_measures_before_and_after_on_screens_that_are_given():
    screens = {name: [drawn(number, seed) for number in range(9)] for seed, name in enumerate(("one", "two"))}
    keys = measure(Sizes(("one",), ("two",), 1, 1.0, 1.0), print, screens).keys
    assert keys["ground.novel_gain"] == pytest.approx(100 * (keys["ground.novel.after"] - keys["ground.novel.before"]))
    assert keys["ground.novel.questions"] == keys["ground.elsewhere.questions"] > 0
    assert keys["ground.novel_steps.after"] == keys["ground.novel_steps.old_only"] >= 1
