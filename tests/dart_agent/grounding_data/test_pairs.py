"""Pairs of descriptions and boxes: phrasings, what is ambiguous, what is left out, and back from the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from dart_gym_grounding_data.collector import Collected, bundled
from dart_gym_grounding_data.explorer import Explorer
from dart_gym_grounding_data.pairs import Pairs, phrases
from dart_gym_grounding_data.screen_elements import Element, Screen

from dart_agent.grounding.candidate import Box
from dart_agent.grounding.screenspot import read_screenspot
from tests.helpers.rooms import Rooms


def drawn(*elements: Element) -> Screen:
    image = np.full((90, 120, 3), 255, np.uint8)
    for n, element in enumerate(elements):
        x, y = element.middle
        image[y - 2 : y + 2, x - 3 - n : x + 3] = 0
    return Screen(image, elements)


def test_an_element_is_called_in_several_ways():
    save = Element("push-button", "Save:", Box(80, 0, 110, 20))
    assert phrases(save, (120, 90)) == ['the button "Save"', "press Save", "Save, top right of the screen"]
    assert phrases(Element("menu", "File", Box(0, 0, 30, 20)), (120, 90))[1] == "open the File menu"
    for name in ("", "go-down-symbolic", "x" * 200):
        assert phrases(Element("icon", name, Box(0, 0, 9, 9)), (120, 90)) == []


def test_a_phrase_that_fits_two_elements_means_either():
    pairs, boxes = Pairs("app"), (Box(0, 0, 30, 20), Box(80, 60, 110, 80))
    pairs.add(0, drawn(*(Element("push-button", "OK", box) for box in boxes)))
    meant = {item.description: len(item.boxes) for item in pairs.items}
    assert meant['the button "OK"'] == 2 and meant["OK, top left of the screen"] == 1


def test_what_was_seen_what_is_blank_and_what_proved_wrong_is_left_out():
    save, blank = Element("push-button", "Save", Box(0, 0, 30, 20)), Element("push-button", "No", Box(60, 60, 90, 80))
    bad, pairs = Element("push-button", "Bad", Box(60, 0, 90, 20)), Pairs("app")
    screen = drawn(save, bad)
    screen = Screen(screen.image, (save, bad, blank))
    pairs.add(0, screen, wrong={bad})
    pairs.add(1, screen, wrong={bad})
    assert {item.description.split()[-1] for item in pairs.items} == {'"Save"', "Save", "screen"}
    assert pairs.left_out == {"with nothing drawn": 6, "seen before": 3}


async def test_what_a_click_opens_becomes_a_query_of_its_own():
    explorer, pairs = Explorer(Rooms({"hall": {"to yard": "yard"}, "yard": {}}), 3), Pairs("rooms")
    await explorer.run()
    pairs.add_effects(explorer.graph)
    (item,) = pairs.items
    assert (item.description, item.boxes) == ('where "yard" is opened', (Box(4, 4, 76, 12),))


def test_a_set_is_written_by_split_one_picture_a_screen(tmp_path: Path):
    pairs = Pairs("my/app")
    pairs.add(0, drawn(Element("push-button", "Save", Box(0, 0, 30, 20)), Element("menu", "File", Box(60, 0, 90, 20))))
    Collected(train=pairs.items).write(tmp_path)
    items, problems = read_screenspot(tmp_path / "train")
    assert not problems and len(items) == 6 and not (tmp_path / "novel").exists()
    assert [item.boxes for item in items] == [item.boxes for item in pairs.items]
    assert len(list((tmp_path / "train/images").rglob("*.png"))) == 1


def test_the_bundled_set_is_of_many_applications_four_of_them_novel():
    tasks = bundled().values()
    assert len(tasks) >= 8 and sum(task.raw["dart"]["novel"] for task in tasks) >= 4
    assert all(task.config and task.suite == "osworld" for task in tasks)
