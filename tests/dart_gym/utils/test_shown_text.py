"""Text of others moves no cursor, hides nothing, and is markup nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.utils.shown_text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [/nope] \u00fc \u65e5", "plain [/nope] \u00fc \u65e5"),
        ("a\nb\tc", "a\nb\tc"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x9b31m\r\x00\x7f", "\\x9b31m\\x0d\\x00\\x7f"),
        ("\u202etxt.exe\u2066", "\\u202etxt.exe\\u2066"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_control_characters_are_shown_as_escapes(text, shown):
    assert printable(text) == shown


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text):
    found = printable(text)
    assert not any(character < " " and character not in "\n\t" or "\x7f" <= character < "\xa0" for character in found)
    assert printable(found) == found
    found.encode()
