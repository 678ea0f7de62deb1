"""ScreenSpot's layout on the disk: both published spellings, what cannot be used, and back again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dart_agent.grounding.candidate import Box
from dart_agent.grounding.screenspot import GroundingItem, box_of, read_screenspot, write_screenspot
from dart_gym.core.errors import ConfigurationError

V1 = {"img_filename": "a.png", "bbox": [10, 20, 30, 40], "instruction": "close", "data_type": "icon",
      "data_source": "windows"}  # fmt: skip
PRO = {"img_filename": "app/a.png", "bbox": [10, 20, 40, 60], "instruction": "close", "ui_type": "text",
       "application": "blender", "platform": "linux", "group": "Creative", "img_size": [100, 80]}  # fmt: skip


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (100, 80), "white").save(path)


def annotations(root: Path, rows: object, name: str = "set.json") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(json.dumps(rows))
    return root / name


def test_the_first_spelling_has_widths_and_heights(tmp_path: Path):
    picture(tmp_path / "screenspot_imgs/a.png")
    file = annotations(tmp_path, [V1], "screenspot_desktop.json")
    for path in (file, tmp_path):
        (item,), problems = read_screenspot(path)
        assert not problems
        assert item.boxes == (Box(10, 20, 40, 60),) and item.screen == (100, 80)
        assert (item.kind, item.application, item.platform) == ("icon", "windows", "windows")
        assert item.screenshot().shape == (80, 100, 3)


def test_the_spelling_of_pro_has_corners(tmp_path: Path):
    picture(tmp_path / "images/app/a.png")
    annotations(tmp_path / "annotations", [PRO])
    (item,), problems = read_screenspot(tmp_path)
    assert not problems and item.boxes == (Box(10, 20, 40, 60),)
    assert (item.kind, item.application, item.platform) == ("text", "blender", "linux")


def test_what_cannot_be_used_is_named_and_the_rest_is_read(tmp_path: Path):
    picture(tmp_path / "images/app/a.png")
    (tmp_path / "images/broken.png").write_bytes(b"no picture")
    picture(tmp_path.parent / "outside.png")
    bad = {
        "no box": {"bbox": None}, "four": {"bbox": [1, 2, 3]}, "words": {"bbox": ["a", "b", "c", "d"]},
        "no area": {"bbox": [10, 20, 10, 60]}, "turned": {"bbox": [40, 60, 10, 20]},
        "fractions": {"bbox": [0.1, 0.2, 0.3, 0.4]}, "thousandths": {"bbox": [400, 500, 600, 900]},
        "not finite": {"bbox": [float("nan")] * 4}, "one of two": {"bboxes": [[1, 2, 3, 4], [5, 5, 5, 5]]},
        "no words": {"instruction": " "}, "no file": {"img_filename": "b.png"}, "no name": {"img_filename": None},
        "broken": {"img_filename": "broken.png"}, "outside": {"img_filename": "../../outside.png"},
    }  # fmt: skip
    annotations(tmp_path, [*({**PRO, **change} for change in bad.values()), "text", PRO])
    items, problems = read_screenspot(tmp_path)
    assert [item.name for item in items] == [f"set.json:{len(bad) + 1}"]
    assert [problem.split(":")[1] for problem in problems] == [str(number) for number in range(len(bad) + 1)]
    for name, said in {
        "no area": "no area",
        "fractions": "fractions",
        "thousandths": "100x80",
        "no file": "b.png",
    }.items():
        assert said in problems[list(bad).index(name)]


@pytest.mark.parametrize("text", ["{}", "no json", ""])
def test_what_is_no_set_is_refused(tmp_path: Path, text: str):
    (tmp_path / "set.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"set\.json"):
        read_screenspot(tmp_path)


def test_a_directory_without_annotations_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="no annotations"):
        read_screenspot(tmp_path)


NUMBERS = st.floats(allow_nan=True) | st.integers(-10, 2000)


@given(st.lists(NUMBERS, min_size=4, max_size=4), st.booleans())
def test_a_box_that_is_taken_has_area_and_lies_on_the_screen(values: list[float], corners: bool):
    found = box_of(values, (300, 200), corners=corners)
    if isinstance(found, Box):
        assert found.area > 0 and found.left >= 0 and found.top >= 0
        assert found.right <= 301 and found.bottom <= 201 and max(found.right, found.bottom) > 1
        assert found == Box(*values) if corners else (found.left, found.top) == tuple(values[:2])
    else:
        assert found.startswith("the box")


@given(st.integers(0, 90), st.integers(0, 70), st.integers(2, 10), st.integers(2, 10))
def test_corners_and_sizes_say_the_same(x: int, y: int, width: int, height: int):
    corners = box_of((x, y, x + width, y + height), (100, 80), corners=True)
    assert corners == box_of((x, y, width, height), (100, 80), corners=False) == Box(x, y, x + width, y + height)


def test_what_is_written_reads_back(tmp_path: Path):
    rng = np.random.default_rng(0)
    shots = [rng.integers(0, 256, (80, 100, 3), np.uint8) for _ in range(3)]
    items = [
        GroundingItem("a", "the bin", (Box(1, 2, 30, 40),), shots[0], (100, 80), "icon", "files", "debian"),
        GroundingItem("b", "any tab", (Box(1, 2, 9, 9), Box(20, 2, 29, 9)), shots[1], (100, 80), "text", "files", "x"),
        GroundingItem("c", "Save", (Box(5.5, 6, 7, 8),), shots[2], (100, 80), "text", "../up", "y"),
    ]
    write_screenspot(tmp_path / "set", items)
    assert not list(tmp_path.glob("up*")), "an application's name leads nowhere else"
    found, problems = read_screenspot(tmp_path / "set")
    assert not problems
    by_words = {item.description: item for item in found}
    for item in items:
        again = by_words[item.description]
        assert (again.boxes, again.screen, again.kind, again.platform) == (
            item.boxes,
            item.screen,
            item.kind,
            item.platform,
        )
        assert again.application == item.application
        np.testing.assert_array_equal(again.screenshot(), item.screenshot())
