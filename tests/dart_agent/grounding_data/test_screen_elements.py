"""Elements of accessibility trees: what is visible, what is in front, and which screens are one state."""

from __future__ import annotations

import numpy as np
import pytest
from dart_gym_grounding_data.screen_elements import MOST, Screen, alike, elements_of, without_counts

from dart_agent.grounding.candidate import Box

SIZE = (400, 300)
SPACE = "https://accessibility.ubuntu.example.org/ns/"
MAIN = (50, 40, 300, 200, 0)


def node(role: str, name: str, box: tuple[int, int, int, int], *below: str, states: str = "enabled") -> str:
    """An element of a tree as the reader inside a desktop writes it."""
    told = " ".join(f'st:{state}="true"' for state in states.split())
    place = f'cp:screencoord="({box[0]}, {box[1]})" cp:size="({box[2]}, {box[3]})"'
    return f'<{role} name="{name}" {told} {place}>{"".join(below)}</{role}>'


def tree(*windows: str) -> str:
    spaces = f'xmlns:st="{SPACE}state" xmlns:cp="{SPACE}component"'
    return f'<desktop-frame {spaces}><application name="app">{"".join(windows)}</application></desktop-frame>'


def frame(*below: str) -> str:
    return node("frame", "Main", (50, 40, 300, 200), *below)


def test_boxes_are_clipped_to_what_scrolls_and_to_the_screen():
    rows = node("scroll-pane", "", (60, 50, 100, 60), node("table-cell", "half", (60, 100, 100, 20)),
                node("table-cell", "below", (60, 120, 100, 20)))  # fmt: skip
    edge = node("frame", "Edge", (350, 250, 200, 200), node("push-button", "cut", (380, 260, 100, 20)))
    found, left_out = elements_of(tree(frame(rows)), [MAIN], SIZE)
    assert [(e.name, e.box) for e in found] == [("half", Box(60, 100, 160, 110))]
    assert left_out == {"without an area that can be seen": 1}
    (cut,), _ = elements_of(tree(edge), [(350, 250, 200, 200, 0)], SIZE)
    assert cut.box == Box(380, 260, 400, 280)


def test_what_another_window_covers_is_left_out_and_what_it_leaves_is_kept():
    buttons = node("push-button", "hidden", (60, 50, 40, 20)), node("push-button", "half", (60, 100, 100, 20))
    above = (50, 40, 60, 100, 0)
    found, left_out = elements_of(tree(frame(*buttons)), [above, MAIN], SIZE)
    assert [(e.name, e.box) for e in found] == [("half", Box(110, 100, 160, 120))]
    assert left_out.total() == 1


def test_items_of_a_closed_menu_are_left_out_and_those_of_an_open_one_are_in_front():
    item = node("menu-item", "Open", (50, 65, 120, 25))
    window = frame(node("menu", "File", (50, 40, 40, 25), item), node("push-button", "Go", (200, 100, 60, 30)))
    closed, left_out = elements_of(tree(window), [MAIN], SIZE)
    assert [e.name for e in closed] == ["File", "Go"] and left_out == {"in a closed menu": 1}
    shown, _ = elements_of(tree(window), [(50, 65, 120, 100, 1), MAIN], SIZE)
    assert {e.name: e.front for e in shown} == {"File": False, "Open": True, "Go": False}
    assert {e.name: e.within for e in shown}["Open"] == "File"


def test_a_modal_layer_in_the_same_window_is_in_front():
    popover = node("panel", "", (100, 80, 90, 90), node("push-button", "Help", (100, 80, 90, 30)), states="modal")
    found, _ = elements_of(tree(frame(node("push-button", "Go", (200, 100, 60, 30))) + popover), [MAIN], SIZE)
    assert {e.name: e.front for e in found} == {"Go": False, "Help": True}


@pytest.mark.parametrize("box", [(60, 50, 0, 20), (60, 50, -5, -5), (-90, -90, 10, 10), (60, 50, 3, 3)])
def test_elements_without_an_area_are_counted(box):
    found, left_out = elements_of(tree(frame(node("push-button", "Go", box))), [MAIN], SIZE)
    assert not found and left_out == {"without an area that can be seen": 1}


def test_thousands_of_elements_are_cut_and_counted():
    many = "".join(node("list-item", f"item {n}", (60, 50, 100, 20)) for n in range(MOST + 500))
    found, left_out = elements_of(tree(frame(many)), [MAIN], SIZE)
    assert len(found) == MOST and left_out == {f"beyond {MOST} on a screen": 500}
    assert len({element.key for element in found}) == MOST


def test_without_accessibility_there_are_no_elements():
    assert elements_of("<desktop-frame/>", [MAIN], SIZE) == ((), {})
    assert elements_of(tree('<frame name="tells no place"/>'), [MAIN], SIZE)[0] == ()


def screen_of(*names: str, image: np.ndarray | None = None) -> Screen:
    buttons = "".join(node("push-button", name, (60, 50 + 25 * n, 200, 20)) for n, name in enumerate(names))
    shown = np.full((300, 400, 3), 200, np.uint8) if image is None else image
    return Screen(shown, elements_of(tree(frame(buttons)), [MAIN], SIZE)[0], ("Main",))


def test_clocks_and_carets_make_no_other_state():
    now, later = screen_of("Clock 12:59", "Inbox (3)"), screen_of("Clock 1:00 pm", "Inbox (12)")
    assert now.tree_key == later.tree_key != screen_of("Clock", "Outbox (3)").tree_key
    caret, other = now.image.copy(), now.image.copy()
    caret[60:80, 100:102] = 0
    other[50:150, 50:250] = 0
    assert alike(now.picture(), screen_of("Clock 12:59", "Inbox (3)", image=caret).picture())
    assert not alike(now.picture(), screen_of("Clock 12:59", "Inbox (3)", image=other).picture())


def test_numbers_in_names_are_masked():
    assert without_counts("*Sheet 12") == without_counts("Sheet 7 ") == "Sheet #"
    assert without_counts("100%") == "#%" and without_counts("2026-11-23") == "#"
