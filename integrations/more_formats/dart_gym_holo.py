"""Holo's JSON: one object with an action, as H Company's cookbooks ask for it.

    {"action": "click_absolute", "x": 352, "y": 348}                                      Holo1.5, pixels of the image
    {"x": 552, "y": 404}                                                                  Holo2, 0 to 1000
    {"note": "", "thought": "...", "action": {"action": "click_element", "element": "Save", "x": 3, "y": 4}}   Holo1

Holo1 steers a browser: what it does there is what a person would press in one. `Click(x, y)` in words is read, too.
Source: hcompai/hai-cookbook@2ba8961 utils/navigation.py, utils/localization.py, holo1_5 and holo2 notebooks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Literal, get_args

from dart_agent.formats.grammar.action_format import (
    HALF_PAIR,
    MAX_ACTIONS,
    InexpressibleError,
    ParsedResponse,
    Reading,
    Response,
    Screen,
    UnreadableError,
    as_tuple,
    one_of,
    parse_error,
)
from dart_agent.formats.grammar.element_actions import typing, visiting
from dart_agent.formats.grammar.fields import DIRECTIONS, Fields, json_objects
from dart_agent.models.coordinates import QWEN25_VL, CoordinateSpace
from dart_gym.core import actions as a

Version = Literal["1", "1.5", "2"]
SCROLL_NOTCHES = 5
_CLICK = re.compile(r"\bClick[(\uff08]\s*(-?\d{1,7}(?:\.\d{1,6})?)\s*[,\uff0c]\s*(-?\d{1,7}(?:\.\d{1,6})?)\s*[)\uff09]")

DESCRIPTION = """Write one JSON object: {"note": "", "thought": "your reasoning", "action": ACTION}, with ACTION one of
{"action": "click_element", "element": "its description", "x": int, "y": int}
{"action": "write_element_abs", "element": "its description", "content": str, "x": int, "y": int}, then Enter is pressed
{"action": "scroll", "direction": "down" | "up" | "left" | "right"}
{"action": "go_back"}, {"action": "refresh"}, {"action": "goto", "url": str}, {"action": "wait", "seconds": int}
{"action": "answer", "content": str}, when the task is accomplished"""


class HoloFormat:
    """`ActionFormat` of Holo1 to Holo2."""

    name = "holo"
    variants = {version: {"version": version} for version in get_args(Version)}

    def __init__(self, version: Version = "1") -> None:
        """Choose how clicks are written, and whether numbers are pixels of the image (1, 1.5) or 0 to 1000 (2)."""
        one_of(self.variants, "version", version)
        self._version = version

    def space(self, screen: Screen) -> CoordinateSpace:
        """Pixels of the image resized by Qwen2.5-VL's own limits for a bare size, or relative to 1000."""
        if self._version == "2":
            return CoordinateSpace.relative(screen, 1000)
        return CoordinateSpace.for_image(screen, **QWEN25_VL)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions and errors of a response."""
        reading = Reading()
        try:
            text, space = reading.answer(response), self.space(screen)
            place = 0
            before: list[str] = []
            for found in json_objects(text):
                before.append(text[place : found.span[0]])
                place = found.span[1]
                self._add(reading, before, found.value, space)
            rest = text[place:]
            if not reading.actions and not reading.errors:
                for click in islice(_CLICK.finditer(rest), MAX_ACTIONS):
                    reading.actions.append(a.Click(*space.pixel(float(click[1]), float(click[2]))))
                rest = _CLICK.sub("", rest) if reading.actions else rest
            parts = (part.strip() for part in (*before, rest))
            reading.thought = "\n".join(part for part in parts if part)
        except ValueError as error:
            reading.give_up(error)
        return reading.result('no JSON object with an action such as {"action": "click_absolute", "x": 1, "y": 2}')

    def _add(self, reading: Reading, said: list[str], given: Mapping[str, Any], space: CoordinateSpace) -> None:
        try:
            if isinstance(given.get("action"), Mapping):  # a step: note, thought and its action
                said += [_words(given.get("note")), _words(given.get("thought"))]
                given = given["action"]
            kind = given.get("action", "click" if {"x", "y"} <= given.keys() else None)
            reader = _READERS.get(kind) if isinstance(kind, str) else None
            if reader is None:
                raise UnreadableError(f"unknown action {str(kind)[:40]!r}; known: {', '.join(_READERS)}")
            fields = Fields({key: value for key, value in given.items() if key != "action"}, str(kind), space)
            fields.take("element")
            actions = reader(fields)
            fields.check_all_used()
            reading.actions += actions
        except ValueError as error:
            reading.errors.append(parse_error(error))

    def format(self, actions: a.Action | tuple[a.Action, ...], screen: Screen, thought: str = "") -> str:
        """Write a response: one object an action, the thought within the first of Holo1's, else before it."""
        space, given = self.space(screen), as_tuple(actions)
        items = [self._write(action, space) for action in given]
        if self._version == "1":
            first = {"note": "", "thought": thought, "action": items[0]}
            return "\n".join(map(_dump, (first, *items[1:])))
        return "\n".join([*([thought] if thought else []), *map(_dump, items)])

    def _write(self, action: a.Action, space: CoordinateSpace) -> dict[str, Any]:
        match action:
            case a.Click(x=int() as x, y=int() as y, button="left", count=1, modifiers=()):
                place = dict(zip(("x", "y"), space.written(x, y), strict=True))
                named = {"1": {"action": "click_element", "element": ""}, "1.5": {"action": "click_absolute"}, "2": {}}
                return {**named[self._version], **place}
            case a.Scroll(x=None) if self._version == "1":
                for direction, (dx, dy) in DIRECTIONS.items():
                    if (action.dx, action.dy) == (dx * SCROLL_NOTCHES, dy * SCROLL_NOTCHES):
                        return {"action": "scroll", "direction": direction}
            case a.Wait() if self._version == "1":
                return {"action": "wait", "seconds": action.seconds}
            case a.Done() if self._version == "1":
                return {"action": "answer", "content": action.answer}
            case a.Press(keys=("alt", "left")) if self._version == "1":
                return {"action": "go_back"}
            case a.Press(keys=("f5",)) if self._version == "1":
                return {"action": "refresh"}
        raise InexpressibleError(f"Holo has no action for {action!r:.200}")

    def describe(self) -> str:
        """The actions as the prompt states them."""
        return DESCRIPTION


def _click(given: Fields) -> list[a.Action]:
    return [a.Click(*given.need(given.xy(), "x and y"))]


def _scroll(given: Fields) -> list[a.Action]:
    dx, dy = given.direction("direction")
    return [a.Scroll(dx=dx * SCROLL_NOTCHES, dy=dy * SCROLL_NOTCHES)]


def _restart(given: Fields) -> list[a.Action]:
    raise UnreadableError("restart: an episode is not begun again; undo what you did, or answer")


_READERS: dict[str, Callable[[Fields], list[a.Action]]] = {
    "click": _click,
    "click_absolute": _click,
    "click_element": _click,
    "write_element_abs": lambda given: [*_click(given), *typing(given.text("content"), False, True)],
    "scroll": _scroll,
    "go_back": lambda given: [a.Press(("alt", "left"))],
    "refresh": lambda given: [a.Press(("f5",))],
    "goto": lambda given: visiting(given.text("url")),
    "wait": lambda given: [a.Wait(given.seconds("seconds", default=2))],
    "answer": lambda given: [a.Done(given.text("content"))],
    "restart": _restart,
}


def _words(value: Any) -> str:
    """A text, "" for anything else: notes and thoughts never make a response unreadable."""
    return HALF_PAIR.sub("\N{REPLACEMENT CHARACTER}", value) if isinstance(value, str) else ""


def _dump(item: Mapping[str, Any]) -> str:
    return json.dumps(item, ensure_ascii=False)
