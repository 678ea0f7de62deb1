"""Qwen-VL's computer use: `<tool_call>` blocks in the spelling of Qwen2.5-VL, 3-VL and 3.5, GUI-Owl, EvoCUA and Fara.

    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [x, y]}}
    </tool_call>

Qwen3.5 writes the same call in tags. Both are read in every version; what a version decides is how it writes and what
coordinates mean: pixels of the resized image (2.5, fara), 0 to 999 (3, 3.5), 0 to 1000 (owl). Wheel movements are
pixels, a notch is 100 of them, up and right positive. `left_click_drag` starts where the pointer is; after a
`mouse_move` both are one drag. Fara's steps of a browser are what a person would press in one. Where there are no tags,
JSON calls of computer_use count by themselves, in a code fence or bare.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args
from urllib.parse import quote_plus

from dart_agent.formats.grammar.action_format import (
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
from dart_agent.formats.grammar.fields import Fields, json_objects, read_json, read_json_values
from dart_agent.formats.grammar.key_chords import write_chord
from dart_agent.formats.grammar.pointer import PIXELS_PER_NOTCH, click_name, drag_to, holding, straight
from dart_agent.formats.grammar.seed_calls import read_tag_calls
from dart_agent.models.coordinates import QWEN25_VL, CoordinateSpace
from dart_gym.core import actions as a

Version = Literal["2.5", "3", "3.5", "owl", "fara"]
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FENCE = re.compile(r"```(?:json)?")
_SPACES = {"3": 999, "3.5": 999, "owl": 1000}
_PLAIN = frozenset(("action", "text", "status", "url", "query", "fact"))  # the others are JSON within tags
SEARCH = "https://www.bing.com/search?q={}&FORM=QBLH"
_CLICKS: dict[str, tuple[a.Button, int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}
_FARA = ("visit_url", "web_search", "history_back", "pause_and_memorize_fact")
_ALIASES = {"click": "left_click", "sleep": "wait", "keypress": "key", "input_text": "type", "hover": "mouse_move"}

_SYSTEM = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tool}
</tools>

{how}"""
_JSON = """For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""
_TAGS = """For each function call, write:
<tool_call>
<function=function-name>
<parameter=parameter-name>
value
</parameter>
</function>
</tool_call>"""


class QwenFormat:
    """`ToolFormat` of Qwen's vision-language models and of those made from them."""

    name = "qwen"
    variants = {version: {"version": version} for version in get_args(Version)}

    def __init__(self, version: Version = "3") -> None:
        """Choose the version, which decides what coordinates mean and how calls are written."""
        one_of(self.variants, "version", version)
        self._version = version

    def space(self, screen: Screen) -> CoordinateSpace:
        """Relative to 999 or 1000, or absolute in the image resized by Qwen2.5-VL's own limits for a bare size."""
        if self._version in _SPACES:
            return CoordinateSpace.relative(screen, _SPACES[self._version])
        return CoordinateSpace.for_image(screen, **QWEN25_VL)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions and errors of a response."""
        reading = Reading()
        try:
            text, space = reading.answer(response), self.space(screen)
            thoughts: list[str] = []
            for index, part in enumerate(self._parts(text)):
                if isinstance(part, str):
                    thoughts.append(part.strip())
                elif index > 4 * MAX_ACTIONS:
                    raise UnreadableError("too many tool calls in one response", part)
                else:
                    self._add(reading, text[part[0] : part[1]], part, space)
            reading.thought = "\n".join(part for part in thoughts if part)
        except ValueError as error:
            reading.give_up(error)
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
        return [*parts, text[position:]] if parts else _bare_parts(text)

    @staticmethod
    def _add(reading: Reading, text: str, span: tuple[int, int], space: CoordinateSpace) -> None:
        try:
            for kind, given in _calls(text, span):
                done = list(reading.actions)
                _read(done, kind, Fields(given, kind, space))
                reading.actions = done
        except ValueError as error:
            reading.errors.append(parse_error(error, span))

    def format(self, actions: a.Action | tuple[a.Action, ...], screen: Screen, thought: str = "") -> str:
        """Write a response: the thought, and one tool call per action."""
        space = self.space(screen)
        write = _tags if self._version == "3.5" else _json
        given = as_tuple(actions)
        calls = [f"{_OPEN}\n{write(item)}\n{_CLOSE}" for action in given for item in self._items(action, space)]
        if any(_CLOSE in call[: -len(_CLOSE)] for call in calls):
            raise InexpressibleError(f"a text that holds {_CLOSE} would end its call")
        return "\n".join([thought, *calls] if thought else calls)

    def _items(self, action: a.Action, space: CoordinateSpace) -> list[dict[str, Any]]:
        """Arguments of the calls for an action; Fara presses Enter after a text unless it says otherwise."""
        if self._version != "3.5" and isinstance(action, a.Click) and action.modifiers:
            raise InexpressibleError(f"only Qwen3.5 holds keys during a click: {action!r:.200}")
        items = _write(action, space)
        if self._version == "fara":
            items = [item | ({"press_enter": False} if item["action"] == "type" else {}) for item in items]
        return items

    def describe(self) -> str:
        """The tool as the prompt states it: Qwen's system text with its function."""
        how = _TAGS if self._version == "3.5" else _JSON
        relative = "a screen of 1000x1000"  # regardless of its real size
        where = relative if self._version in _SPACES else "the screen, in pixels of the newest screenshot"
        return _SYSTEM.format(tool=json.dumps(self._tool(where)), how=how)

    def tool_schema(self, screen: Screen) -> dict[str, Any]:
        """The function, for a model that sees this screen."""
        width, height = (1000, 1000) if self._version in _SPACES else self.space(screen).model
        return self._tool(f"a screen of {width}x{height}")

    def _tool(self, where: str) -> dict[str, Any]:
        text = {"type": "string"}
        number = {"type": "number"}
        fara = self._version == "fara"
        properties = {
            "action": {"type": "string", "enum": [*_CLICKS, *(name for name in _READERS if fara or name not in _FARA)]},
            "coordinate": {"type": "array", "description": "(x, y) from the left and top edge"},
            "keys": {"type": "array", "description": "Keys of a chord, for action=key, key_down and key_up"},
            "text": text | {"description": "For action=type, action=answer and action=interact"},
            "pixels": number | {"description": "For action=scroll (positive: up) and action=hscroll (positive: right)"},
            "time": number | {"description": "Seconds, for action=wait"},
            "status": {"type": "string", "enum": ["success", "failure"], "description": "For action=terminate"},
        }
        return {
            "type": "function",
            "function": {
                "name": "computer_use",
                "description": f"Use mouse and keyboard on {where}. left_click_drag starts where "
                "the pointer is. End with terminate, or with answer where the task asks a question.",
                "parameters": {"type": "object", "required": ["action"], "properties": properties},
            },
        }


def _bare_parts(text: str) -> list[str | tuple[int, int]]:
    """Texts, and the places of JSON calls of computer_use that have no tags around them."""
    parts: list[str | tuple[int, int]] = []
    place = 0
    for found in json_objects(text) if "computer_use" in text else ():
        if found.value.get("name") == "computer_use":
            parts += [_FENCE.sub("", text[place : found.span[0]]), found.span]
            place = found.span[1]
    return [*parts, _FENCE.sub("", text[place:]) if parts else text]


def _calls(text: str, span: tuple[int, int]) -> list[tuple[str, dict[str, Any]]]:
    """The actions of what stands between the tags, and their arguments, from JSON or from tags; mostly one."""
    if "<function" in text:
        named = read_tag_calls(text)
        if not named or any(call.name != "computer_use" for call in named):
            raise UnreadableError("a call is one <function=computer_use> with its parameters", span)
        all_given: list[Any] = [{name: _value(name, value) for name, value in call.arguments.items()} for call in named]
    else:
        values = read_json_values(_unfenced(text), span)
        if not values or not all(isinstance(call, dict) and call.get("name") == "computer_use" for call in values):
            raise UnreadableError('a call is {"name": "computer_use", "arguments": {...}}')
        all_given = [call.get("arguments") for call in values]
    found: list[tuple[str, dict[str, Any]]] = []
    for given in all_given:
        if isinstance(given, str):
            given = read_json(given, span)  # as chat completions write arguments
        if not isinstance(given, dict):
            raise UnreadableError('a call is {"name": "computer_use", "arguments": {...}}')
        kind = given.pop("action", None)
        if not isinstance(kind, str):
            raise UnreadableError("computer_use needs an action")
        found.append((_ALIASES.get(kind, kind), given))
    return found


def _unfenced(text: str) -> str:
    """A text without a code fence around it."""
    text = text.strip()
    return _FENCE.sub("", text, count=1).removesuffix("```") if text.startswith("```") else text


def _read(done: list[a.Action], kind: str, fields: Fields) -> None:
    """Add the actions of one call."""
    held = fields.keys("text") if kind in _CLICKS or kind in ("scroll", "hscroll") else ()
    if kind in _CLICKS:
        x, y = fields.pair("coordinate") or (None, None)
        done += holding(held, [a.Click(x, y, *_CLICKS[kind])])
    elif kind in _READERS:
        turned: list[a.Action] = [] if held else done
        _READERS[kind](turned, fields)
        done += holding(held, turned) if held else []
    else:
        raise UnreadableError(f"unknown action {kind[:40]!r}; known: {', '.join((*_CLICKS, *_READERS))}")
    fields.check_all_used()


def _value(name: str, text: str) -> Any:
    """Return what stands between the tags of a parameter: the newlines beside them are not its."""
    text = text.removeprefix("\n").removesuffix("\n")
    return text if name in _PLAIN or not text.lstrip().startswith(("[", "-", *"0123456789tf")) else read_json(text)


def _json(item: dict[str, Any]) -> str:
    return json.dumps({"name": "computer_use", "arguments": item}, ensure_ascii=False)


def _tags(item: dict[str, Any]) -> str:
    lines = ["<function=computer_use>"]
    for name, value in item.items():
        written = value if name in _PLAIN else json.dumps(value, ensure_ascii=False)
        if "</parameter>" in written or "</function>" in written:
            raise InexpressibleError(f"a text that holds </parameter> or </function> would end its {name}")
        lines.append(f"<parameter={name}>\n{written}\n</parameter>")
    return "\n".join([*lines, "</function>"])


def _type(done: list[a.Action], given: Fields) -> None:
    """A text, for Fara into a field that is clicked first, and with Enter unless it says otherwise."""
    text = given.text("text")
    fields = given.has("coordinate", "press_enter", "delete_existing_text")
    if point := given.pair("coordinate"):
        done.append(a.Click(*point))
    overwrite = given.flag("delete_existing_text")
    done += typing(text, overwrite, given.flag("press_enter", default=fields))


def _held_keys(done: list[a.Action], given: Fields, kind: type[a.KeyDown] | type[a.KeyUp]) -> None:
    keys = given.keys("keys")
    if not keys:
        raise UnreadableError(f"{given.what} needs keys: a list of keys")
    done += [kind(key) for key in (keys if kind is a.KeyDown else reversed(keys))]


def _noted(done: list[a.Action], given: Fields) -> None:
    given.text("fact")
    done.append(a.Wait(0.0))  # what is memorised is the response itself, which stays in the history


def _scroll(done: list[a.Action], given: Fields, axis: str) -> None:
    x, y = given.pair("coordinate") or (None, None)
    count = given.wheel("pixels", size=PIXELS_PER_NOTCH)
    done.append(a.Scroll(x, y, dx=count) if axis == "x" else a.Scroll(x, y, dy=-count))


def _terminate(done: list[a.Action], given: Fields) -> None:
    status = given.text("status")
    if status not in ("success", "failure"):
        raise UnreadableError(f"terminate needs status success or failure, got {status[:40]!r}")
    done.append(a.Done() if status == "success" else a.Fail())


_READERS: Mapping[str, Callable[[list[a.Action], Fields], Any]] = {
    "mouse_move": lambda done, given: done.append(a.Move(*given.need(given.pair("coordinate"), "coordinate"))),
    "left_click_drag": lambda done, given: drag_to(done, given.need(given.pair("coordinate"), "coordinate")),
    "key": lambda done, given: done.extend(given.presses("keys")),
    "key_down": lambda done, given: _held_keys(done, given, a.KeyDown),
    "key_up": lambda done, given: _held_keys(done, given, a.KeyUp),
    "type": _type,
    "scroll": lambda done, given: _scroll(done, given, "y"),
    "hscroll": lambda done, given: _scroll(done, given, "x"),
    "wait": lambda done, given: done.append(a.Wait(given.seconds("time"))),
    "terminate": _terminate,
    "answer": lambda done, given: done.append(a.Done(given.text("text"))),
    "interact": lambda done, given: done.append(a.AskUser(given.text("text", default=""))),
    "visit_url": lambda done, given: done.extend(visiting(given.text("url"))),
    "web_search": lambda done, given: done.extend(visiting(SEARCH.format(quote_plus(given.text("query"))))),
    "history_back": lambda done, given: done.append(a.Press(("alt", "left"))),
    "pause_and_memorize_fact": _noted,
}


def _write(action: a.Action, space: CoordinateSpace) -> list[dict[str, Any]]:  # noqa: C901  # one case per action
    """One action as arguments of calls."""

    def at(x: int | None, y: int | None) -> dict[str, Any]:
        return {} if x is None or y is None else {"coordinate": list(space.written(x, y))}

    match action:
        case a.Click() if (action.button, action.count) in _CLICKS.values():
            name = click_name(_CLICKS, action)
            held = {"text": write_chord(action.modifiers, "+")} if action.modifiers else {}
            return [{"action": name, **at(action.x, action.y), **held}]
        case a.Drag(button="left"):
            start, end = straight(action, "Qwen")
            return [{"action": "mouse_move", **at(*start)}, {"action": "left_click_drag", **at(*end)}]
        case a.Move():
            return [{"action": "mouse_move", **at(action.x, action.y)}]
        case a.Press():
            return [{"action": "key", "keys": list(action.keys)}]
        case a.KeyDown() | a.KeyUp():
            return [{"action": action.kind, "keys": [action.key]}]
        case a.AskUser():
            return [{"action": "interact", "text": action.question}]
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
