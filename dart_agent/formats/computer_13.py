"""OSWorld's `computer_13`: JSON objects `{"action_type": "CLICK", "parameters": {"x": 1, "y": 2}}`, and bare words.

Source: `desktop_env/actions.py`. Parameters may also stand beside `action_type`; `WAIT`, `FAIL` and `DONE` may be bare.
Coordinates are absolute in the image that the model saw. `SCROLL` counts notches, up and right positive, and has no
place: it turns where the pointer is. `DRAG_TO` starts there, too; with a `MOVE_TO` before it, it is one drag.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from dart_agent.formats.grammar.action_format import (
    InexpressibleError,
    ParsedResponse,
    Reading,
    Response,
    Screen,
    UnreadableError,
    as_tuple,
    parse_error,
)
from dart_agent.formats.grammar.fields import Fields, json_objects
from dart_agent.formats.grammar.pointer import drag_to, straight
from dart_agent.formats.grammar.reasoning import SPECIAL_TOKEN
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a

WAIT_S = 2.0
_WORDS: dict[str, a.Action] = {"WAIT": a.Wait(WAIT_S), "FAIL": a.Fail(), "DONE": a.Done()}
_MARKS = " \t\r`*'\".!,"
_TOKEN = re.compile(SPECIAL_TOKEN)  # of a box, or at the end
_BROKEN = re.compile(r'[{\uff5b]\s*["\u201c\uff02]action_type')
_FENCE = re.compile(r"```(?:json)?")

DESCRIPTION = """One JSON object per action, in a code block: {"action_type": TYPE, "parameters": {...}}
MOVE_TO {"x": int, "y": int}
CLICK {"button": "left" | "right" | "middle", "x": int, "y": int, "num_clicks": 1 | 2 | 3}, all optional
RIGHT_CLICK {"x": int, "y": int}, DOUBLE_CLICK {"x": int, "y": int}
MOUSE_DOWN {"button": ...}, MOUSE_UP {"button": ...}
DRAG_TO {"x": int, "y": int}, from where the pointer is
SCROLL {"dx": int, "dy": int}, wheel notches: up and right are positive
TYPING {"text": str}
PRESS {"key": str}, KEY_DOWN {"key": str}, KEY_UP {"key": str}
HOTKEY {"keys": [str, ...]}
WAIT, DONE (the task is accomplished), FAIL (it cannot be)"""


class Computer13Format:
    """`ActionFormat` of OSWorld's `computer_13`."""

    name = "computer_13"

    def space(self, screen: Screen) -> CoordinateSpace:
        """Absolute in the image that the model saw."""
        return CoordinateSpace.of(screen)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions and errors of a response: its text, or one action as a dict."""
        reading = Reading()
        try:
            if isinstance(response, Mapping) and "action_type" in response:
                self._add(reading, response, self.space(screen), (0, 0))
                return reading.result()
            text = reading.answer(response)
            self._read(reading, text, self.space(screen))
        except ValueError as error:
            reading.give_up(error)
        return reading.result('no action found; write {"action_type": ..., "parameters": {...}}, or WAIT, DONE or FAIL')

    def _read(self, reading: Reading, text: str, space: CoordinateSpace) -> None:
        place = 0
        pieces: list[str] = []
        for found in json_objects(text):
            if "action_type" in found.value:
                self._between(reading, pieces, text[place : found.span[0]], place)
                self._add(reading, found.value, space, found.span)
                place = found.span[1]
        self._between(reading, pieces, text[place:], place)
        reading.thought = "\n".join(pieces)

    @staticmethod
    def _between(reading: Reading, pieces: list[str], text: str, offset: int) -> None:
        """Text that is not JSON: thought, a bare word on a line of its own, or an action that is broken."""
        if broken := _BROKEN.search(text):
            reading.fail("no valid JSON in this action", (offset + broken.start(), offset + len(text)))
        lines = text.split("\n")
        words = {line: word for line in set(lines) if len(line) < 60 and (word := _word(line)) in _WORDS}
        reading.actions += [_WORDS[words[line]] for line in lines if line in words]
        if rest := _FENCE.sub("", "\n".join(line for line in lines if line not in words)).strip():
            pieces.append(rest)

    @staticmethod
    def _add(reading: Reading, given: Mapping[str, Any], space: CoordinateSpace, span: tuple[int, int]) -> None:
        try:
            kind = given.get("action_type")
            parameters = given.get("parameters", {k: v for k, v in given.items() if k != "action_type"})
            if not isinstance(kind, str) or not isinstance(parameters, Mapping):
                raise UnreadableError("action_type must be text and parameters an object")
            fields = Fields(parameters, kind, space)
            reader = _READERS.get(kind.upper())
            if reader is None:
                raise UnreadableError(f"unknown action_type {kind[:40]!r}; known: {', '.join(_READERS)}")
            done = list(reading.actions)
            reader(done, fields)
            fields.check_all_used()
            reading.actions = done
        except ValueError as error:
            reading.errors.append(parse_error(error, span))

    def format(self, actions: a.Action | tuple[a.Action, ...], screen: Screen, thought: str = "") -> str:
        """Write a response: the thought, and a code block of one object per action."""
        space = self.space(screen)
        written = [item for action in as_tuple(actions) for item in _write(action, space)]
        lines = "\n".join(json.dumps(item, ensure_ascii=False) if isinstance(item, dict) else item for item in written)
        return f"{thought}\n```json\n{lines}\n```" if thought else f"```json\n{lines}\n```"

    def describe(self) -> str:
        """The action space as the prompt states it."""
        return DESCRIPTION


def _word(line: str) -> str:
    return (_TOKEN.sub("", line) if "<" in line else line).strip(_MARKS)


def _click(done: list[a.Action], given: Fields, button: str = "left", count: int = 1) -> None:
    x, y = given.xy() or (None, None)
    done.append(a.Click(x, y, given.button("button", default=button), given.count("num_clicks", default=count)))


_READERS: dict[str, Callable[[list[a.Action], Fields], Any]] = {
    "MOVE_TO": lambda done, given: done.append(a.Move(*given.need(given.xy(), "x and y"))),
    "CLICK": _click,
    "RIGHT_CLICK": lambda done, given: _click(done, given, "right"),
    "DOUBLE_CLICK": lambda done, given: _click(done, given, count=2),
    "MOUSE_DOWN": lambda done, given: done.append(a.MouseDown(given.button("button"))),
    "MOUSE_UP": lambda done, given: done.append(a.MouseUp(given.button("button"))),
    "DRAG_TO": lambda done, given: drag_to(done, given.need(given.xy(), "x and y")),
    "SCROLL": lambda done, given: done.append(
        a.Scroll(dx=given.wheel("dx", default=0), dy=-given.wheel("dy", default=0))
    ),
    "TYPING": lambda done, given: done.append(a.Type(given.text("text"))),
    "PRESS": lambda done, given: done.extend(given.presses("key")),
    "KEY_DOWN": lambda done, given: done.append(a.KeyDown(given.one_key("key"))),
    "KEY_UP": lambda done, given: done.append(a.KeyUp(given.one_key("key"))),
    "HOTKEY": lambda done, given: done.extend(given.presses("keys")),
    "WAIT": lambda done, given: done.append(a.Wait(WAIT_S)),
    "FAIL": lambda done, given: done.append(a.Fail()),
    "DONE": lambda done, given: done.append(a.Done()),
}


def _write(action: a.Action, space: CoordinateSpace) -> list[dict[str, Any] | str]:  # noqa: C901  # one case each
    """One action as objects and words."""

    def item(kind: str, **parameters: Any) -> list[dict[str, Any] | str]:
        return [{"action_type": kind, "parameters": parameters}]

    def at(x: int, y: int) -> dict[str, float]:
        return dict(zip(("x", "y"), space.written(x, y), strict=True))

    match action:
        case a.Click(modifiers=()):
            place = {} if action.x is None or action.y is None else at(action.x, action.y)
            count = {} if action.count == 1 else {"num_clicks": action.count}
            return item("CLICK", button=action.button, **place, **count)
        case a.Move():
            return item("MOVE_TO", **at(action.x, action.y))
        case a.Drag(button="left"):
            start, end = straight(action, "computer_13")
            return [*item("MOVE_TO", **at(*start)), *item("DRAG_TO", **at(*end))]
        case a.Scroll(x=None):
            return item("SCROLL", dx=action.dx, dy=-action.dy)
        case a.Type():
            return item("TYPING", text=action.text)
        case a.Press():
            return item("HOTKEY", keys=list(action.keys))
        case a.KeyDown():
            return item("KEY_DOWN", key=action.key)
        case a.KeyUp():
            return item("KEY_UP", key=action.key)
        case a.MouseDown():
            return item("MOUSE_DOWN", button=action.button)
        case a.MouseUp():
            return item("MOUSE_UP", button=action.button)
        case a.Wait(seconds=seconds) if seconds == WAIT_S:
            return ["WAIT"]
        case a.Done(answer=""):
            return ["DONE"]
        case a.Fail(reason=""):
            return ["FAIL"]
    raise InexpressibleError(f"computer_13 has no spelling for {action!r:.200}")


FORMAT = Computer13Format
