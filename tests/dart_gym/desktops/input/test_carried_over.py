"""The list of carried-over state: which actions leave traces that no reset takes back."""

import pytest

from dart_gym.core.actions import Click, Drag, KeyDown, KeyUp, MouseDown, Move, Press, Scroll, Type, Wait
from dart_gym.desktops.input.carried_over import CARRIED_OVER, Remedy, leaves_traces


@pytest.mark.parametrize(
    "action",
    [
        *(Type("any text\n"), Click(1, 1, "right"), Click(1, 1, modifiers=("shift",)), Move(1, 1), Wait(1)),
        *(Press(("a",)), Press(("shift", "end")), Press(("capslock",)), Press(("num1",)), Press(("esc",))),
        *(Press(("ctrl", ")")), Press(("ctrl", "0")), Press(("ctrl", "\\"))),
        *(Press(("ctrl", "c")), Press(("ctrl", "V")), Press(("ctrl", "shift", "left")), Press(("pause",))),
        *(KeyDown("shift"), KeyDown("a"), KeyUp("ctrl"), MouseDown("left"), Scroll(1, 1, 3), Drag(((1, 1), (9, 9)))),
    ],
)
def test_what_edits_a_page_leaves_no_traces(action):
    assert not leaves_traces(action)


@pytest.mark.parametrize(
    "action",
    [
        *(
            Press(("ctrl", "t")),
            Press(("ctrl", "+")),
            Press(("ctrl", "-")),
            Press(("ctrl", "d")),
            Press(("ctrl", "shift", "i")),
        ),
        *(Press(("ctrl", "s")), Press(("f11",)), Press(("alt", "f4")), Press(("win",)), Press(("printscreen",))),
        *(Press(("ctrl", "alt", "delete")), Press(("ctrl", "shift", "v")), Press(("menu",)), Press(("volumeup",))),
        *(Press(("shift", "esc")), Press(("ctrl", "shift", "delete")), Press(("ShiftRight", "Escape"))),
        *(KeyDown("ctrl"), KeyDown("alt"), KeyDown("win"), Click(1, 1, modifiers=("ctrl",))),
    ],
)
def test_commands_of_browser_and_window_manager_leave_traces(action):
    assert leaves_traces(action)


def test_each_item_has_a_remedy():
    assert set(CARRIED_OVER.values()) == set(Remedy)
