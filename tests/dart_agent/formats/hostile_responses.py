"""Responses that no model should write, and what holds for whatever a format makes of them."""

import gc
import time

import msgpack

from dart_agent.formats import ParsedResponse, get_format
from dart_gym.core import actions as a
from dart_gym.core.actions import action_to_dict

SIZE = (1920, 1080)
LIMIT_S = 0.05
LOOP_S = 0.018
"""What `_slowness` counts takes so long on a processor of 2026 that nobody shares."""


def timed(name: str, response: object) -> tuple[ParsedResponse, float]:
    """A response, parsed, and the processor time that it took: the best of up to four tries, for busy machines.

    Where it is too much, it is that of a processor that is as fast as `LOOP_S` says.
    Nothing is collected meanwhile: that takes longer the more the other tests have left, whatever is parsed.
    """
    chosen, best = get_format(name), float("inf")
    gc.disable()
    try:
        for _ in range(4):
            started = time.thread_time()
            found = chosen.parse(response, SIZE)
            used = time.thread_time() - started
            best = min(best, used if used < LIMIT_S else used / _slowness())
            if best < LIMIT_S:
                break
    finally:
        gc.enable()
    return found, best


def _slowness() -> float:
    """How many times as long as `LOOP_S` a loop takes now, at least 1: programs on one core slow each other down."""
    started = time.thread_time()
    sum(number * number for number in range(300_000))
    return max(1.0, (time.thread_time() - started) / LOOP_S)


def understood_or_said(found: ParsedResponse) -> None:
    """There is something, it is of the right types, and it can be written down as UTF-8."""
    repr(found).encode()
    found.thought.encode()
    assert found.actions or found.errors
    assert all(error.reason and len(error.reason) <= 280 for error in found.errors)
    for action in found.actions:
        assert isinstance(action, a.Action)
        msgpack.packb(action_to_dict(action) if type(action) in a.ACTION_TYPES.values() else list(action.targets))


HOSTILE = {
    "empty": "",
    "spaces": " " * 5000,
    "nul": "\0" * 100,
    "bytes": b"Action: wait()",
    "no UTF-8": b"\xff\xfe\x80Action: wait()",
    "megabyte": "a" * 1_000_000,
    "megabyte of bytes": b"(" * 1_000_000,
    "megabyte of actions": "Action: click(start_box='(1,2)')\n\n" * 30_000,
    "none": None,
    "number": 7,
    "list": [1, 2],
    "empty object": {},
    "deep object": {"output": [{"type": "computer_call", "actions": [[[[]]]]}]},
    "brackets": "Action: " + "(" * 150_000,
    "nested": "Action: click(start_box=" + "[" * 100_000 + "]" * 50_000,
    "quotes": "Action: type(content='" + "' " * 70_000,
    "escapes": "Action: type(content='" + "\\" * 150_000,
    "candidates": "Action: " * 18_000 + "type(content='",
    "fences": "Action: wait()" + "```" * 50_000,
    "specials": "Action: wait()" + "<|im_end|>" * 15_000,
    "python fences": "```python\n" * 15_000,
    "python depth": "```python\n" + "(" * 100_000 + "\n```",
    "python minus": "```python\nf(" + "-" * 100_000 + "1)\n```",
    "python attributes": "```python\na" + ".a" * 70_000 + "()\n```",
    "python powers": "```python\nf(" + "9**" * 30_000 + "9)\n```",
    "python strings": "```python\nf(" + "'a'," * 30_000 + ")\n```",
    "python numbers": "```python\nf(" + "1," * 60_000 + ")\n```",
    "python statements": "```python\n" + "wait()\n" * 20_000 + "```",
    "python number": "```python\npyautogui.click(" + "9" * 150_000 + ", 1)\n```",
    "python unclosed strings": "```python\n" + "'''\"" * 30_000 + "\n```",
    "python joined strings": "```python\nf(" + "''" * 60_000 + ")\n```",
    "json depth": '{"action_type":' + "[" * 150_000,
    "json objects": '{"action_type":' * 10_000,
    "json list": '{"a":[' + "{}," * 50_000,
    "json many": '{"action_type": "WAIT"}' * 6_000,
    "json nan": '{"action_type": "CLICK", "parameters": {"x": NaN, "y": Infinity}}',
    "json huge": '{"action_type": "CLICK", "parameters": {"x": 1e999, "y": ' + "9" * 4000 + "}}",
    "json digits": '{"action_type": "CLICK", "parameters": {"x": ' + "9" * 100_000 + "}}",
    "seed functions": "<seed:tool_call>" + "<function=a>" * 12_000,
    "seed parameters": "<seed:tool_call><function=a>" + "<parameter=a>" * 11_000 + "</function>",
    "seed calls": "<seed:tool_call>" + "<function=wait></function>" * 6_000,
    "tool calls": "<tool_call>" * 14_000,
    "tool calls closed": "<tool_call>{}</tool_call>" * 6_000,
    "tool call depth": "<tool_call>" + "[" * 100_000 + "</tool_call>",
    "nan": "Action: click(start_box='(nan,inf)')",
    "exponent": "Action: wait(seconds='1e999')",
    "digits": "Action: click(start_box='(" + "9" * 100_000 + ",1)')",
    "many digits": "Action: wait(seconds='" + "9" * 100_000 + "')",
    "coordinates": "Action: click(start_box='(" + "1," * 50_000 + "1)')",
    "arguments": "Action: click(" + "a='1'," * 20_000 + ")",
    "keys": "Action: hotkey(key='" + "ctrl " * 30_000 + "')",
    "key": "Action: keydown(key='" + "x" * 100_000 + "')",
    "blank lines": "Action: " + "\n\n" * 70_000,
    "typed": "Action: type(content='" + "a" * 30_000 + "')",
    "wrong language": "思考:点击按钮。\n动作:点击(起点='(1,2)')",
    "surrogate": "Action: type(content='\ud800')",
    "surrogate in JSON": '{"action_type": "TYPING", "parameters": {"text": "\\ud800"}}',
    "surrogate in Python": "```python\npyautogui.write('\\ud800')\nagent.click('\\ud800')\n```",
    "surrogate in a call": '{"output": [{"type": "message", "content": [{"type": "output_text", "text": "\\ud800"}]}]}',
    "surrogate in a thought": '{"content": [{"type": "text", "text": "\\ud800"}], "output": []}',
    "surrogate in Qwen": '<tool_call>{"name": "computer_use", "arguments": {"action": "type", "text": "\\ud800"}}',
}
