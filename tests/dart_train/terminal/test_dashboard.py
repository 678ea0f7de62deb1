"""The drawing itself, at the sizes of real terminals."""

from __future__ import annotations

import copy
import io
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dart_train.terminal.dashboard import View, bar, draw, stacked

TASKS = {f"suite/task-{n}": n / 200 for n in range(200)}
ENGINE = {
    "name": "r0", "state": "ready", "version": 7, "busy_share": 0.5, "in_flight": 3, "limit": 32, "why_down": "",
}  # fmt: skip
ROLLOUT = {
    "rollouts": 120, "budget": None, "success": TASKS, "desktops": {"generate": 60, "step": 15, "reset": 5},
    "engines": [{**ENGINE, "name": f"r{n}"} for n in range(12)], "env_utilisation": 0.25, "actions_per_min": 43.6,
    "engine_queue": 4, "unrecorded": 2, "admitted": False, "lost": 3, "given_up": 1, "engine_faults": {"died": 2},
    "staleness": {"mean": 1.5, "max": 4}, "left_out": {}, "unavailable": {}, "weights_skipped": {},
}  # fmt: skip


def view_of(**changes) -> View:
    rollout = {**copy.deepcopy(ROLLOUT), **changes}
    history = {task: deque([0.0, 1.0]) for task in TASKS} | {"speed": deque([10.0, 43.6])}
    return View("run", current="rl", done=120, rollout=rollout, history=history, started=1.0)


def rendered(view: View, width: int, height: int) -> str:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
    console.print(draw(view, 100.0, width, height))
    text = console.file.getvalue()
    assert len(text.splitlines()) <= height and all(len(line) <= width for line in text.splitlines())
    return text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60), (60, 24)])
def test_it_fits_the_terminal_with_everything_wrong(width, height):
    trouble = {
        "left_out": {f"suite/task-{n}": "6 losses in a row, it crashed " + "x" * 200 for n in range(5)},
        "unavailable": {"database": {"what": "the database is away", "seconds": 72.0, "reason": "gone [red]" * 40}},
        "weights_skipped": {8: "cut off"},
    }
    text = rendered(view_of(**trouble), width, height)
    assert "the database is away for 1:12" in text and "more of this kind" in text and "left out" in text


def test_alarms_of_the_trainer_are_shown():
    view = view_of()
    view.trainer = {"step": 3, "alarm/engine_gap": 1.0}
    assert "log-probabilities are not those of the weights" in rendered(view, 140, 30)


def test_what_a_service_alone_shows():
    assert "trainer is behind" in rendered(view_of(), 80, 24)
    text = rendered(view_of(admitted=True), 100, 22)
    for shown in (
        "120 rollouts · 1:39", "generate 60 step 15 reset 5", "v7", "3/32", "44 actions/min",
        "4 requests · 2 to record", "mean 1.500 · max 4", "3 rollouts · 1 given up", "died 2",
        "more, all v7 to v7",
    ):  # fmt: skip
        assert shown in text, f"{shown!r} is not in\n{text}"


def test_engines_that_are_down_come_first_and_say_why():
    engines = [{**ENGINE, "name": f"r{n}"} for n in range(12)]
    engines[11] |= {"state": "down", "why_down": "its process has ended"}
    assert "engine r11 ● down: its process" in rendered(view_of(engines=engines), 80, 24)


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(0, 200)), st.integers(1, 40))
def test_a_stacked_bar_has_its_width_and_leaves_nothing_out(parts, width):
    columns = dict(stacked(parts, width))
    present = {name for name, count in parts.items() if count}
    if present and len(present) <= width:
        assert sum(columns.values()) == width and set(columns) == present and min(columns.values()) >= 1
    else:
        assert columns == {}


@given(st.one_of(st.none(), st.floats(-1, 2)), st.integers(1, 30))
def test_a_bar_has_its_width(share, width):
    assert len(bar(share, width)) == width
    assert bar(1.0, width) == "█" * width and bar(0.0, width) == " " * width
