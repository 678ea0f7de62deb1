"""Seeds choose parameters, placeholders are filled: pure and the same everywhere."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.core.errors import TaskError
from dart_gym.tasks.catalog.parameters import draw, fill
from dart_gym.tasks.catalog.registry import get_task, task_ids
from dart_gym.tasks.osworld.oracle_script import expand, place
from dart_gym.tasks.osworld.osworld_scenario import instantiate
from dart_gym.tasks.screen.windows import Geometry, parse_geometry, title_pattern

WORDS = {"word": {"choice": ["a", "b", "c"]}, "n": {"integer": [3, 5]}}


def test_draws_are_the_same_forever():
    assert [draw(WORDS, "dialogs/x", seed) for seed in range(4)] == [
        {"word": "c", "n": 4},
        {"word": "b", "n": 5},
        {"word": "b", "n": 4},
        {"word": "a", "n": 5},
    ]


@given(st.integers(), st.text())
def test_draws_are_pure_and_within_bounds(seed, task_id):
    values = draw(WORDS, task_id, seed)
    assert values == draw(WORDS, task_id, seed)
    assert values["word"] in "abc" and 3 <= values["n"] <= 5


def test_all_values_occur_and_tasks_and_parameters_are_independent():
    drawn = [draw(WORDS, "x", seed) for seed in range(100)]
    assert len({tuple(values.items()) for values in drawn}) == 9
    assert drawn != [draw(WORDS, "y", seed) for seed in range(100)]
    alone = {"n": WORDS["n"]}
    assert [values["n"] for values in drawn] == [draw(alone, "x", seed)["n"] for seed in range(100)]


def test_fields_of_a_chosen_object_become_dotted_names():
    assert draw({"d": {"choice": [{"label": "Tea", "top": 7}]}}, "x", 0) == {"d.label": "Tea", "d.top": 7}


@pytest.mark.parametrize(
    "rule",
    [None, {}, {"choice": []}, {"choice": "abc"}, {"integer": [2, 1]}, {"integer": [1.5, 2]}, {"choice": [None]}],
)
def test_a_bad_specification_is_refused(rule):
    with pytest.raises(TaskError, match="'p'"):
        draw({"p": rule}, "x", 0)


def test_filling_leaves_other_braces_alone_and_does_not_touch_its_input():
    value = {"{n}": ["{n} ${n} {m} {", {"a": "{n}", "b": 1}]}
    assert fill(value, {"n": 4}) == {"{n}": ["4 $4 {m} {", {"a": "4", "b": 1}]}
    assert fill(value, {"n": 4}, typed=True)["{n}"][1] == {"a": 4, "b": 1}
    assert value == {"{n}": ["{n} ${n} {m} {", {"a": "{n}", "b": 1}]}


@pytest.mark.parametrize("task_id", task_ids("dialogs"))
def test_bundled_tasks_are_filled_wholly_and_depend_on_the_seed(task_id):
    task = get_task(task_id)
    instances = [instantiate(task, seed) for seed in range(20)]
    names = draw(task.raw["dart"]["parameters"], task_id, 0)
    for instance in instances:
        text = json.dumps(instance)
        assert not [name for name in names if f"{{{name}}}" in text]
        assert expand(task_id, instance["oracle"])
    assert len({instance["instruction"] for instance in instances}) > 1
    assert instances == [instantiate(task, seed) for seed in range(20)]


def test_oracle_scripts_are_written_out():
    press = {"kind": "press", "keys": ["left"]}
    assert expand("x", [{**press, "repeat": 2}, {**press, "repeat": 0}, press]) == [press] * 3
    for repeat in (-1, "3", True, 1000):
        with pytest.raises(TaskError, match="repeat"):
            expand("x", [{**press, "repeat": repeat}])


def test_places_are_counted_from_the_named_edges():
    window = Geometry(10, 20, 300, 200)
    assert place(window, {"left": 5, "top": 6}) == {"x": 15, "y": 26}
    assert place(window, {"right": 5, "bottom": 6}) == {"x": 305, "y": 214}


def test_xwininfo_is_read():
    text = "  Absolute upper-left X:  11\n  Absolute upper-left Y:  -3\n  Width: 300\n  Height: 200\n"
    assert parse_geometry(text) == Geometry(11, -3, 300, 200)
    assert parse_geometry("xwininfo: error: No such window") is None


def test_titles_are_taken_literally():
    assert title_pattern("~/a.txt (1) - Mousepad", strict=True) == r"^~/a\.txt \(1\) - Mousepad$"
