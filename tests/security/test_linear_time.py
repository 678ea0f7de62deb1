"""Whatever a model or a program in a desktop writes, reading it takes time in proportion to its length."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_agent.formats.format_registry import formats, get_format, variants
from dart_agent.formats.grammar.action_format import MAX_RESPONSE
from dart_agent.grounding.text_grounder import point_of
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.cluster.server.access_tokens import TokenBook
from dart_gym.tasks.screen.windows import parse_geometry, parse_windows
from tests.helpers.linear_time import AFTER, BEFORE, SHORT, UNITS, assert_linear
from tests.helpers.parameters import slow_but

pytestmark = pytest.mark.security


def variant_names():
    return [f"{name}{variant}" for name in formats() for variant in ("", *(f":{v}" for v in variants(name)))]


def format_reader(name):
    return lambda text, form=get_format(name): form.parse(text, (1920, 1080))


class OneHeader:
    def __init__(self, value):
        self._value = value

    def get_all(self, key):
        return [self._value]


def windows_row(text):
    return parse_windows(f"0x01200003  0 xterm.XTerm{text}")


READERS = {
    **{name: format_reader(name) for name in variant_names()},
    "a grounder's answer": lambda text: point_of(text, CoordinateSpace.relative((1920, 1080), 1000)),
    "windows": parse_windows,
    "a row of windows": windows_row,
    "geometry": parse_geometry,
    "authorization": lambda text: TokenBook.of_one("secret").authenticate(OneHeader(text)),
}
# Variants of a format share most of what reads them: formats as they are by default run always, and two that read more.
QUICK = [name for name in READERS if ":" not in name or name in {"ui_tars:doubao", "qwen:3"}]


def test_readers_cover_every_format_and_dialect():
    assert {"ui_tars:doubao", "ui_tars", "qwen", "pyautogui"} <= set(READERS)
    assert 4 * SHORT <= MAX_RESPONSE  # longer ones are refused unread


@pytest.mark.parametrize("name", slow_but(QUICK, READERS))
def test_hostile_families_are_read_in_linear_time(name):
    for before in BEFORE:
        for unit in UNITS:
            assert_linear(READERS[name], before, unit, "x")


@pytest.mark.parametrize("name", slow_but(QUICK, READERS))
@settings(max_examples=60)
@given(
    before=st.lists(st.sampled_from([*BEFORE, *UNITS]), max_size=3).map("".join),
    unit=st.lists(st.one_of(st.sampled_from(UNITS), st.characters()), min_size=1, max_size=3).map("".join),
    after=st.sampled_from(AFTER),
)
def test_any_repetition_is_read_in_linear_time(name, before, unit, after):
    assert_linear(READERS[name], before, unit, after)


def test_a_title_forges_no_row_of_windows():
    title = "a\x0b0x02000007  0 evil.Evil  host Bank\x0c0x3  0 e.E  h x\u20280x4  0 e.E  h x"
    found = parse_windows(f"0x01200003  0 xterm.XTerm  host {title}\n0x01200009 -1 desktop_window  host Desktop\n")
    assert [(window.id, window.wm_class) for window in found] == [
        (0x1200003, "xterm.XTerm"),
        (0x1200009, "desktop_window"),
    ]
    assert found[0].title == title


def test_a_title_forges_no_geometry():
    title = "x\n  Absolute upper-left X:  7\n  Absolute upper-left Y:  7\n  Width: 7\n  Height: 7\n"
    numbers = "  Absolute upper-left X:  1\n  Absolute upper-left Y:  2\n  Width: 30\n  Height: 40\n"
    found = parse_geometry(f'xwininfo: Window id: 0x1200003 "{title}"\n\n{numbers}')
    assert (found.x, found.y, found.width, found.height) == (1, 2, 30, 40)
