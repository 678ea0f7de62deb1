"""Actions as pointer and keyboard events, the same list for every desktop."""

import pytest

from dart_gym.core.actions import Click, Done, Drag, KeyUp, MouseDown, Move, Press, Scroll, Type
from dart_gym.desktops.base.desktop import ActionError
from dart_gym.desktops.input.input_events import input_events


@pytest.mark.parametrize(
    ("action", "events"),
    [
        (Move(1, 2), [["move", 1, 2]]),
        (Click(1, 2), [["move", 1, 2], ["button", 1, True], ["button", 1, False]]),
        (
            Click(button="right", count=2, modifiers=("ctrl",)),
            [
                ["chord", [0xFFE3], True],
                ["button", 3, True],
                ["button", 3, False],
                ["pace"],
                ["button", 3, True],
                ["button", 3, False],
                ["chord", [0xFFE3], False],
            ],
        ),
        (Scroll(dy=-2), [["button", 4, True], ["button", 4, False]] * 2),
        (Type("aé中\n"), [["text", [0x61, 0xE9, 0x1004E2D, 0xFF0D]]]),
        (Press(("ctrl", "s")), [["chord", [65507, 115], True], ["chord", [65507, 115], False]]),
        (KeyUp("shift"), [["key", 0xFFE1, False]]),
        (MouseDown("middle"), [["button", 2, True]]),
        (Done(), []),
    ],
)  # fmt: skip
def test_actions_become_numbers(action, events):
    assert input_events(action, 640, 480) == events


def test_a_drag_moves_in_small_steps_and_lets_go():
    events = input_events(Drag(((0, 0), (100, 0))), 640, 480)
    assert [event for event in events if event[0] == "button"] == [["button", 1, True], ["button", 1, False]]
    assert [event[0] for event in events[:6]] == ["move", "button", "pace", "move", "rest", "pace"]
    assert [event[0] for event in events[-3:]] == ["move", "rest", "button"]
    assert [event[1] for event in events if event[0] == "move"] == [0, 11, 22, 33, 44, 55, 66, 77, 88, *[100] * 3]


def test_the_end_of_a_drag_is_reported_again_after_each_rest():
    """A page in Chromium takes a drop only after three motions over its place, each of which it has answered."""
    end = input_events(Drag(((0, 0), (5, 5))), 640, 480)[3:]
    assert end == [["move", 5, 5], ["rest"], *[["rest"], ["move", 5, 5]] * 2, ["rest"], ["button", 1, False]]


def test_a_move_with_a_button_down_goes_the_way_of_a_drag():
    drag = input_events(Drag(((0, 0), (100, 0))), 640, 480)
    assert input_events(Move(100, 0), 640, 480, (0, 0)) == drag[2:-1]


@pytest.mark.parametrize("action", [Click(640, 0), Drag(((0, 0), (0, 480))), Move(-1, 0), Type("\x01")])
def test_what_cannot_be_done_is_an_action_error_and_nothing_is_sent(action):
    with pytest.raises(ActionError):
        input_events(action, 640, 480)
