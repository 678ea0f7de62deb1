"""Qwen-VL's computer use: `<tool_call>` blocks with JSON, in the spelling of Qwen2.5-VL and Qwen3-VL.

    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [x, y]}}
    </tool_call>

Version 2.5 writes absolute pixels of the resized image, version 3 numbers from 0 to 999. Wheel movements are pixels, a
notch is 100 of them, up and right positive. `left_click_drag` starts where the pointer is; after a `mouse_move` both
are one drag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from dart_agent.formats.grammar.action_format import (
    MAX_ACTIONS,
    InexpressibleError,
    ParsedResponse,
    Reading,
    Response,
    Screen,
    UnreadableError,
    as_tuple,
    parse_error,
    text_of,
)
from dart_agent.formats.grammar.fields import Fields, read_json
from dart_agent.formats.grammar.pointer import drag_to, straight
from dart_agent.formats.openai import PIXELS_PER_NOTCH, notches
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a

Version = Literal["2.5", "3"]
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK = re.compile(r"</?think>")
_CLICKS: dict[str, tuple[a.Button, int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}

_SYSTEM = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tool}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class QwenFormat:
    """`ToolFormat` of Qwen2.5-VL and Qwen3-VL."""

    name = "qwen"
    variants = {"2.5": {"version": "2.5"}, "3": {"version": "3"}}

    def __init__(self, version: Version = "3") -> None:
        """Choose the version, which decides what coordinates mean."""
        if version not in ("2.5", "3"):
            raise TypeError(f"unknown version {version!r}; known: 2.5, 3")
        self._version = version

    def space(self, screen: Screen) -> CoordinateSpace:
        """Relative to 999 (3), or absolute in the image resized by Qwen2.5-VL's own limits for a bare size (2.5)."""
        if self._version == "3":
            return CoordinateSpace.relative(screen, 999)
        if isinstance(screen, CoordinateSpace):
            return screen
        return CoordinateSpace.for_image(screen, min_pixels=56 * 56, max_pixels=12_845_056)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions and errors of a response."""
        reading, space = Reading(), self.space(screen)
        try:
            text = text_of(response)
            thoughts: list[str] = []
            for index, part in enumerate(self._parts(text)):
                if isinstance(part, str):
                    thoughts.append(_THINK.sub("", part).strip())
                elif index > 4 * MAX_ACTIONS:
                    raise UnreadableError("too many tool calls in one response", part)
                else:
                    self._add(reading, text[part[0] : part[1]], part, space)
            reading.thought = "\n".join(part for part in thoughts if part)
        except UnreadableError as error:
            reading.errors.append(parse_error(error))
        return reading.result(f"no {_OPEN} with a call of computer_use in the response")

    @staticmethod
    def _parts(text: str) -> list[str | tuple[int, int]]:
        """Texts, and the places of the JSON between tool call tags; a call that is cut off reaches to the end."""
        parts: list[str | tuple[int, int]] = []
        position = 0
        while (start := text.find(_OPEN, position)) >= 0:
            parts.append(text[position:start])
            end = text.find(_CLOSE, start)
            end = len(text) if end < 0 else end
            parts.append((start + len(_OPEN), end))
            position = min(len(text), end + len(_CLOSE))
        return [*parts, text[position:]]

    @staticmethod
    def _add(reading: Reading, text: str, span: tuple[int, int], space: CoordinateSpace) -> None:
        try:
            call = read_json(text, span)
            given = call.get("arguments") if isinstance(call, dict) else None
            if not isinstance(given, dict) or call.get("name") != "computer_use":
                raise UnreadableError('a call is {"name": "computer_use", "arguments": {...}}')
            kind = given.pop("action", None)
            if not isinstance(kind, str):
                raise UnreadableError("computer_use needs an action")
            fields = Fields(given, kind, space)
            done = list(reading.actions)
            if kind in _CLICKS:
                x, y = fields.pair("coordinate") or (None, None)
                done.append(a.Click(x, y, *_CLICKS[kind]))
            elif kind in _READERS:
                _READERS[kind](done, fields)
            else:
                raise UnreadableError(f"unknown action {kind[:40]!r}; known: {', '.join((*_CLICKS, *_READERS))}")
            fields.check_all_used()
            reading.actions = done
        except ValueError as error:
            reading.errors.append(parse_error(error, span))

    def format(self, actions: a.Action | tuple[a.Action, ...], screen: Screen, thought: str = "") -> str:
        """Write a response: the thought, and one tool call per action."""
        space = self.space(screen)
        calls = [
            f"{_OPEN}\n{json.dumps({'name': 'computer_use', 'arguments': item}, ensure_ascii=False)}\n{_CLOSE}"
            for action in as_tuple(actions)
            for item in _write(action, space)
        ]
        if any(_CLOSE in call[: -len(_CLOSE)] for call in calls):
            raise InexpressibleError(f"a text that holds {_CLOSE} would end its call")
        return "\n".join([thought, *calls] if thought else calls)

    def describe(self) -> str:
        """The tool as the prompt states it: Qwen's system text with its function."""
        return _SYSTEM.format(tool=json.dumps(self.tool_schema((1000, 1000))))

    def tool_schema(self, screen: Screen) -> dict[str, Any]:
        """The function, for a model that sees this screen."""
        width, height = (1000, 1000) if self._version == "3" else self.space(screen).model
        text, number = {"type": "string"}, {"type": "number"}
        properties = {
            "action": {"type": "string", "enum": [*_CLICKS, *_READERS]},
            "coordinate": {"type": "array", "description": "(x, y) from the left and top edge"},
            "keys": {"type": "array", "description": "Keys of a chord, for action=key"},
            "text": text | {"description": "For action=type and action=answer"},
            "pixels": number | {"description": "For action=scroll (positive: up) and action=hscroll (positive: right)"},
            "time": number | {"description": "Seconds, for action=wait"},
            "status": {"type": "string", "enum": ["success", "failure"], "description": "For action=terminate"},
        }
        return {
            "type": "function",
            "function": {
                "name": "computer_use",
                "description": f"Use mouse and keyboard on a screen of {width}x{height}. left_click_drag starts where "
                "the pointer is. End with terminate, or with answer where the task asks a question.",
                "parameters": {"type": "object", "required": ["action"], "properties": properties},
            },
        }


def _scroll(done: list[a.Action], given: Fields, axis: str) -> None:
    x, y = given.pair("coordinate") or (None, None)
    count = notches(given.number("pixels"), PIXELS_PER_NOTCH)
    done.append(a.Scroll(x, y, dx=count) if axis == "x" else a.Scroll(x, y, dy=-count))


def _terminate(done: list[a.Action], given: Fields) -> None:
    status = given.text("status")
    if status not in ("success", "failure"):
        raise UnreadableError(f"terminate needs status success or failure, got {status[:40]!r}")
    done.append(a.Done() if status == "success" else a.Fail())


_READERS: Mapping[str, Callable[[list[a.Action], Fields], Any]] = {
    "mouse_move": lambda done, given: done.append(a.Move(*given.need(given.pair("coordinate"), "coordinate"))),
    "left_click_drag": lambda done, given: drag_to(done, given.need(given.pair("coordinate"), "coordinate")),
    "key": lambda done, given: done.append(a.Press(given.keys("keys"))),
    "type": lambda done, given: done.append(a.Type(given.text("text"))),
    "scroll": lambda done, given: _scroll(done, given, "y"),
    "hscroll": lambda done, given: _scroll(done, given, "x"),
    "wait": lambda done, given: done.append(a.Wait(given.number("time"))),
    "terminate": _terminate,
    "answer": lambda done, given: done.append(a.Done(given.text("text"))),
}


def _write(action: a.Action, space: CoordinateSpace) -> list[dict[str, Any]]:  # noqa: C901  # one case per action
    """One action as arguments of calls."""

    def at(x: int | None, y: int | None) -> dict[str, Any]:
        return {} if x is None or y is None else {"coordinate": list(space.written(x, y))}

    match action:
        case a.Click(button=button, count=count, modifiers=()) if (button, count) in _CLICKS.values():
            name = next(name for name, pair in _CLICKS.items() if pair == (button, count))
            return [{"action": name, **at(action.x, action.y)}]
        case a.Drag(button="left"):
            start, end = straight(action, "Qwen")
            return [{"action": "mouse_move", **at(*start)}, {"action": "left_click_drag", **at(*end)}]
        case a.Move():
            return [{"action": "mouse_move", **at(action.x, action.y)}]
        case a.Press():
            return [{"action": "key", "keys": list(action.keys)}]
        case a.Scroll(dx=0):
            return [{"action": "scroll", "pixels": -action.dy * PIXELS_PER_NOTCH, **at(action.x, action.y)}]
        case a.Scroll(dy=0):
            return [{"action": "hscroll", "pixels": action.dx * PIXELS_PER_NOTCH, **at(action.x, action.y)}]
        case a.Type():
            return [{"action": "type", "text": action.text}]
        case a.Wait():
            return [{"action": "wait", "time": action.seconds}]
        case a.Done(answer=""):
            return [{"action": "terminate", "status": "success"}]
        case a.Done():
            return [{"action": "answer", "text": action.answer}]
        case a.Fail(reason=""):
            return [{"action": "terminate", "status": "failure"}]
    raise InexpressibleError(f"Qwen's computer_use has no spelling for {action!r:.200}")


FORMAT = QwenFormat
