"""Whether a reader of foreign text takes time in proportion to its length, whatever is repeated in it."""

from __future__ import annotations

import time

from dart_gym.core.errors import DartGymError

SHORT = 20_000
QUICK_S = 0.02
"""What is read faster than this at `SHORT` characters is not looked at again: a square would have taken 0.2 s."""

MOST_GROWTH = 9.0
"""Times slower at four times the length: linear is 4, quadratic 16."""


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
