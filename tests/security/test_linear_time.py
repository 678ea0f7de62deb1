"""Whatever a model or a program in a desktop writes, reading it takes time in proportion to its length."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_agent.formats.format_registry import formats, get_format, variants
from dart_agent.formats.grammar.action_format import MAX_RESPONSE
from dart_agent.models.coordinates import CoordinateSpace
from dart_agent.policies.grounder import point_of
from dart_gym.cluster.server.access_tokens import TokenBook
from dart_gym.core.errors import DartGymError
from dart_gym.tasks.screen.windows import parse_geometry, parse_windows

pytestmark = pytest.mark.security

SHORT = 40_000
QUICK_S = 0.02
"""What is read faster than this at `SHORT` characters is not looked at again: a square would have taken seconds."""

MOST_GROWTH = 9.0
"""Times slower at four times the length: linear is 4, quadratic 16."""


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


def seconds(read, text):
    started = time.thread_time()
    try:
        read(text)
    except DartGymError:
        pass  # refused, which takes its time too
    return time.thread_time() - started


def assert_linear(read, before, unit, after):
    def text(length):
        return before + unit * (length // len(unit)) + after

    if seconds(read, text(SHORT)) < QUICK_S:
        return
    short = min(seconds(read, text(SHORT)) for _ in range(3))
    long = min(seconds(read, text(4 * SHORT - 200)) for _ in range(2))
    assert long <= max(MOST_GROWTH * short, QUICK_S), f"{long / short:.1f} times slower: {before!r} {unit!r} {after!r}"


BEFORE = ["", "Thought: ", "Reflection: ", "Action_Summary: ", "Action: ", "Thought: a\nAction: type(content='"]
BEFORE += [
    "Action: click(start_box='",
    "```python\n",
    "```",
    '{"action_type": "TYPING", "parameters": {"text": "',
    "# Code:\n",
]
BEFORE += ["<tool_call>\n", '<tool_call>\n{"name": "', "<seed:tool_call><function=a>", "<think>", "bearer ", "basic "]
BEFORE += ["0x01200003  0 xterm.XTerm  host ", "0x01200003  0 ", "\n  Width: ", 'xwininfo: Window id: 0x1 "']
UNITS = [" ", "\n", "\t", " \n", "  x ", "'", '"', "\\", "`", "(", ")", "<", "a", "9", "9,", ";", "-", "\x0b", "\u2028"]
UNITS += ["Thought: ", "Action:", "Reflection: ", "Action_Summary: ", "type(content='", "type(content", "```", "```\n "]
UNITS += [
    '\\"',
    "\\'",
    "\\'''x",
    "# '\n",
    "{",
    "[",
    '{"',
    "{}",
    "'''",
    '"""',
    "<|",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "a=",
    "a=(",
]
UNITS += [
    "<function=a>",
    "<function=",
    "<parameter=a>",
    "# Code:\n",
    "f(",
    "_",
    "0x1  0 a  b c\n",
    "Width: ",
    "Width:\n",
]
AFTER = ["", "x", "')"]


def test_readers_cover_every_format_and_dialect():
    assert {"ui_tars:dart", "ui_tars:osworld-uitars15-v1", "ui_tars", "qwen", "pyautogui"} <= set(READERS)
    assert 4 * SHORT <= MAX_RESPONSE  # longer ones are refused unread


@pytest.mark.parametrize("name", READERS)
def test_hostile_families_are_read_in_linear_time(name):
    for before in BEFORE:
        for unit in UNITS:
            assert_linear(READERS[name], before, unit, "x")


@pytest.mark.parametrize("name", READERS)
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
