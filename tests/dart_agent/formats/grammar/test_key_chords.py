"""Chords and sequences of keys: which spaces and joints join keys, and which part presses."""

import pytest

from dart_agent.formats.grammar.action_format import UnreadableError
from dart_agent.formats.grammar.key_chords import read_presses


@pytest.mark.parametrize(
    ("given", "presses"),
    [
        # one chord
        ("ctrl c", ["ctrl c"]),
        ("ctrl+ c", ["ctrl c"]),
        ("ctrl +c", ["ctrl c"]),
        ("ctrl - c", ["ctrl c"]),
        ("Ctrl + Shift + Esc", ["ctrl shift esc"]),
        ("ctrl+shift t", ["ctrl shift t"]),
        ("ctrl shift+t", ["ctrl shift t"]),
        ("ctrl+page down", ["ctrl pagedown"]),
        (["ctrl+shift", "t"], ["ctrl shift t"]),
        (["ctrl", "+"], ["ctrl +"]),
        # a whole chord beside another key
        ("ctrl+a delete", ["ctrl a", "delete"]),
        ("ctrl+k ctrl+s", ["ctrl k", "ctrl s"]),
        ("enter ctrl+a", ["enter", "ctrl a"]),
        ("shift+tab tab tab", ["shift tab", "tab", "tab"]),
        ("ctrl++ enter", ["ctrl +", "enter"]),
        ("alt+f4 page down", ["alt f4", "pagedown"]),
        (["ctrl+a", "delete"], ["ctrl a", "delete"]),
        (["ctrl-c", "ctrl-v"], ["ctrl c", "ctrl v"]),
        (["esc", "ctrl", "shift+t"], ["esc", "ctrl shift t"]),
        (["ctrl+z"] * 9, ["ctrl z"] * 9),
        # the same key again
        ("down down", ["down", "down"]),
        (["tab", "tab"], ["tab", "tab"]),
    ],
)
def test_presses(given, presses):
    assert [" ".join(chord) for chord in read_presses(given)] == presses


@pytest.mark.parametrize("given", ["ctrl+z z", "ctrl+a delete"])
def test_spaces_of_xdotool_always_part(given):
    assert len(read_presses(given, spaces_part=True)) == 2


EMACS = ["C-c", "M-x", "C-x C-c", ["C-c"], "C-M-x"]


@pytest.mark.parametrize(
    "given", ["ctrl z z", ["shift", "tab", "tab"], ["ctrl+a", 5], ["ctrl+a", ""], "ctrl+a nokey", *EMACS, "ctrl & c"]
)
def test_what_is_neither_is_an_error(given):
    with pytest.raises(UnreadableError):
        read_presses(given)
