"""Chords of keys: how they may be written, and what is pressed."""

from __future__ import annotations

import pytest

from dart_gym.core.actions import Click, Press, action_from_dict, action_to_dict


@pytest.mark.parametrize(
    ("written", "keys"),
    [
        ("ctrl+c", ("ctrl", "c")),
        ("Control + Shift + Escape", ("ctrl", "shift", "esc")),
        ("ctrl++", ("ctrl", "+")),
        ("+", ("+",)),
        ("enter", ("enter",)),
        ("A", ("A",)),
    ],
)
def test_a_chord_may_be_one_text(written, keys):
    assert Press(written).keys == keys
    assert action_from_dict({"kind": "press", "keys": written}) == Press(keys)


@pytest.mark.parametrize(
    ("keys", "pressed"),
    [
        (("ctrl", "alt", "T"), ("ctrl", "alt", "t")),
        (("ctrl", "shift", "T"), ("ctrl", "shift", "t")),
        (("win", "É"), ("win", "é")),
        (("shift", "T"), ("shift", "T")),  # a character, as when it is typed
        (("altright", "Q"), ("altright", "Q")),
        (("ctrl", "+"), ("ctrl", "+")),
    ],
)
def test_a_capital_in_a_shortcut_asks_for_no_shift(keys, pressed):
    assert Press(keys).keys == pressed
    assert action_from_dict(action_to_dict(Press(keys))) == Press(keys)


def test_what_is_no_chord_is_refused():
    for keys in ("ctrl+nosuch", "", "ctrl+", (3,), ("ctrl+c",)):
        with pytest.raises(ValueError, match="key"):
            Press(keys)
    assert Click(1, 1, modifiers="ctrl+shift").modifiers == ("ctrl", "shift")
