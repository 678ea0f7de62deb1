"""The format "ui_tars_published": UI-TARS's text as two published parsers read it, to reproduce their numbers.

    "dart"                  the parser of DART's rollouts, which end in pyautogui inside the VM
    "osworld-uitars15-v1"   that of OSWorld's UI-TARS-1.5 agent (`mm_agents/uitars15_v1.py`)

Both have defects, which are here too. Both turn calls into Python source for pyautogui; here the same outcome is worked
out without any source being made.
    - What they raise on is an error, with the name of their exception.
    - What they let pass without effect (code that the VM's Python refuses, unknown actions and keys, scrolling
      sideways) is `ignored`, and a response that does nothing at all is `Wait(0)`: a step that changes nothing.
    - Coordinates are rounded to three decimals and then cut to whole pixels, as pyautogui does; X keeps the pointer
      on the screen.
`tests/dart_agent/formats/test_ui_tars_published.py` lists every difference between these two and `ui_tars`.
"""

import ast
import math
import re
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from dart_agent.formats import get_format
from dart_agent.formats.grammar.action_format import (
    MAX_ACTIONS,
    ParsedResponse,
    ParseError,
    Response,
    Screen,
    UnreadableError,
    answer_of,
    one_of,
    parse_error,
)
from dart_agent.formats.grammar.literals import parse_source
from dart_agent.formats.grammar.reasoning import Split
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core import actions as a
from dart_gym.core.keys import canonical_key

Parser = Literal["dart", "osworld-uitars15-v1"]
Span = tuple[int, int]
NOTCHES = 5
WAIT_S = 2.0  # OSWorld's WAIT is one pause of its step; `pacing="osworld"` adds the other
_TYPED, _TYPED_END = "type(content='", "')"
_UNESCAPED_QUOTE = re.compile(r"(?<!\\)'")
_THOUGHTS = {
    "Thought:": ("Thought: ",),
    "Reflection:": ("Reflection: ", "Action_Summary: "),
    "Action_Summary:": ("Action_Summary: ",),
}
"""What precedes the thought, one after the other, by how the response begins."""

_CLICKS: dict[str, tuple[a.Button, int]] = {
    "click": ("left", 1),
    "left_single": ("left", 1),
    "left_double": ("left", 2),
    "right_single": ("right", 1),
}
_LONE_ARROWS = {"arrowleft": "left", "arrowright": "right", "arrowup": "up", "arrowdown": "down"}


@dataclass(frozen=True, slots=True)
class PublishedResponse(ParsedResponse):
    """A response as a published parser reads it; `ignored` is what that passes over in silence."""

    ignored: tuple[ParseError, ...] = ()


class PublishedUITarsFormat:
    """`ActionFormat` that reads as a published parser does, and writes as `ui_tars` does."""

    name = "ui_tars_published"
    variants = {parser: {"parser": parser} for parser in get_args(Parser)}

    def __init__(self, parser: Parser = "dart") -> None:
        """Choose a parser. Raises `TypeError`: there is no such parser."""
        one_of(get_args(Parser), "parser", parser)
        self._parser = parser
        self._written = get_format("ui_tars")

    def space(self, screen: Screen) -> CoordinateSpace:
        """That of UI-TARS-1.5: absolute in the resized image."""
        return self._written.space(screen)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions and errors of a response, and in `ignored` what had no effect."""
        try:
            split, space = answer_of(response), self.space(screen)
        except ValueError as error:
            return ParsedResponse("", (), (parse_error(error),))
        found = parse_as_published(split.answer, space, self._parser)
        if not split.reasoning:
            return found
        thought = "\n".join(part for part in (split.reasoning, found.thought) if part)
        return replace(found, thought=thought, errors=tuple(_moved(split, error) for error in found.errors))

    def format(self, actions: a.Action | tuple[a.Action, ...], screen: Screen, thought: str = "") -> str:
        """Write a response in UI-TARS's own spelling."""
        return self._written.format(actions, screen, thought)

    def describe(self) -> str:
        """The action space as UI-TARS's prompt states it."""
        return self._written.describe()


def _moved(split: Split, error: ParseError) -> ParseError:
    return replace(error, span=split.place(error.span))


@dataclass(slots=True)
class _Program:
    """What the program that a published parser writes would do."""

    space: CoordinateSpace
    actions: list[a.Action] = field(default_factory=list)
    ignored: list[ParseError] = field(default_factory=list)
    broken: ParseError | None = None  # the VM's Python refuses the source, so that nothing of it runs

    def nothing(self, reason: str, span: Span) -> None:
        self.ignored.append(ParseError(reason, span))


def parse_as_published(text: str, space: CoordinateSpace, parser: Parser) -> ParsedResponse:
    """Read a response as a published parser does; what a model writes never raises, but becomes `errors`."""
    stripped = text.strip()
    shift = len(text) - len(text.lstrip())
    thought = _thought(stripped)
    try:
        if "Action:" not in stripped:
            raise UnreadableError("AssertionError: no 'Action:' in the response", (0, len(text)))
        start = stripped.rindex("Action:") + len("Action:")
        calls, skipped = _read(stripped[start:], start + shift, parser)
        program = _Program(space, ignored=skipped)
        for name, arguments, span in calls:
            if final := _final(name, arguments, parser):
                return PublishedResponse(thought, (final,), ignored=tuple(program.ignored))
            _add(program, name, _inputs(arguments, space), span, parser)
    except ValueError as error:
        return ParsedResponse(thought, (), (parse_error(error, (0, len(text))),))
    problem = _broken_thought(thought)
    if problem:
        program.broken = program.broken or ParseError(problem, (0, start + shift))
    if program.broken:
        return PublishedResponse(thought, (a.Wait(0.0),), ignored=(*program.ignored, program.broken))
    return PublishedResponse(thought, tuple(program.actions) or (a.Wait(0.0),), ignored=tuple(program.ignored))


def _thought(text: str) -> str:
    """What follows a word such as "Thought: " up to the next "Action:", one character at least; "" without the word."""
    kind = next((kind for kind in _THOUGHTS if text.startswith(kind)), "Thought:")
    start = -1
    for word in _THOUGHTS[kind]:  # not an expression such as (.+?)(?=\s*Action:): its time grows with the square
        found = text.find(word, start + 1)
        if found < 0:
            return ""
        start = found + len(word)
    end = text.find("Action:", start + 1)
    return (text[start:] if end < 0 else text[start:end]).strip()


def _read(text: str, offset: int, parser: Parser) -> tuple[list[tuple[str, dict[str, object], Span]], list[ParseError]]:
    """(name, arguments, span) of the pieces between blank lines, and those that DART skips."""
    calls: list[tuple[str, dict[str, object], Span]] = []
    skipped: list[ParseError] = []
    position = offset
    pieces = text.split("\n\n")
    if len(pieces) > 4 * MAX_ACTIONS:
        raise UnreadableError(f"{len(pieces)} pieces in one response", (offset, offset + len(text)))
    for piece in pieces:
        span = (position, position + len(piece))
        position += len(piece) + 2
        found = _parse_call(_retyped(piece).replace("\n", "\\n").lstrip(), span)
        if found is not None:
            calls.append((*found, span))
        elif parser == "dart":
            if piece.lstrip().startswith("finished("):
                calls.append(("finished", {}, span))
            else:
                skipped.append(ParseError("DART skips what it cannot parse", span))
        else:
            raise UnreadableError(f"ValueError: Action can't parse: {piece[:60]!r}", span)
    return calls, skipped


def _retyped(piece: str) -> str:
    """A piece with `type(content`, wrapped anew so that quotes inside survive; what was no such call is typed whole."""
    if "type(content" not in piece:
        return piece
    return _TYPED + _UNESCAPED_QUOTE.sub(r"\\'", _unwrapped(piece)) + _TYPED_END


def _unwrapped(piece: str) -> str:
    """A piece with the contents of all that is `type(content='...')` within one line in place of it."""
    parts, position = [], 0
    while (start := piece.find(_TYPED, position)) >= 0:
        begin = start + len(_TYPED)
        line_end = found if (found := piece.find("\n", begin)) >= 0 else len(piece)
        end = piece.find(_TYPED_END, begin, line_end)
        if end < 0:  # nor does any other call that begins in this line end in it
            parts.append(piece[position:line_end])
            position = line_end
        else:
            parts += (piece[position:start], piece[begin:end])
            position = end + len(_TYPED_END)
    return "".join((*parts, piece[position:]))


def _parse_call(source: str, span: Span) -> tuple[str, dict[str, object]] | None:
    """(name, named arguments) of a call; None where there is none. Values that are no constants are None."""
    try:
        tree = parse_source(source, span[0])
    except UnreadableError:
        return None
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr) or not isinstance(tree.body[0].value, ast.Call):
        return None
    call = tree.body[0].value
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "None")
    values: dict[str, object] = {
        str(keyword.arg): keyword.value.value if isinstance(keyword.value, ast.Constant) else None
        for keyword in call.keywords
    }
    return name, values


def _final(name: str, arguments: dict[str, object], parser: Parser) -> a.Action | None:
    """The action that stands for the whole response, whatever else is in it."""
    if name == "finished":
        content = arguments.get("content")
        return a.Done(content[: a.MAX_TEXT] if isinstance(content, str) else "")
    if parser == "dart" and name == "wait":
        return a.Wait(WAIT_S)
    if parser == "dart" and name == "call_user":
        return a.Fail()
    return None


def _inputs(arguments: dict[str, object], space: CoordinateSpace) -> dict[str, str | tuple[float, ...]]:
    """Arguments as the published code keeps them: text without leading space, boxes as fractions of the screen."""
    found: dict[str, str | tuple[float, ...]] = {}
    for name, value in arguments.items():
        if value == "":
            continue
        if not isinstance(value, str):
            raise UnreadableError(f"AttributeError: {name} is no text")
        value = value.lstrip()
        found[name.strip()] = _box(name, value, space) if "start_box" in name or "end_box" in name else value
    return found


def _box(name: str, value: str, space: CoordinateSpace) -> tuple[float, ...]:
    parts = value.replace("(", "").replace(")", "").split(",")
    if len(value) > 1000 or not all(_is_float(part) for part in parts):
        raise UnreadableError(f"ValueError: {name}={value[:60]!r} is no list of numbers")
    numbers = [float(part) / space.model[index % 2] for index, part in enumerate(parts)]
    return tuple(numbers * 2 if len(numbers) == 2 else numbers)


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _point(box: object, space: CoordinateSpace, wrong_length: str = "ValueError") -> tuple[int, int]:
    """Centre of a box in pixels, as pyautogui takes it."""
    if not isinstance(box, tuple):
        raise UnreadableError("TypeError: object of type 'NoneType' has no len()")
    if not all(map(math.isfinite, box)):
        raise UnreadableError("NameError: nan and inf are no names in the expression that is evaluated")
    if len(box) != 4:
        raise UnreadableError(f"{wrong_length}: a box holds two or four numbers, not {len(box)}")
    x = round((box[0] + box[2]) / 2 * space.screen[0], 3)
    y = round((box[1] + box[3]) / 2 * space.screen[1], 3)
    return min(max(int(x), 0), space.screen[0] - 1), min(max(int(y), 0), space.screen[1] - 1)


def _add(program: _Program, name: str, given: dict[str, str | tuple[float, ...]], span: Span, parser: Parser) -> None:
    """What the source for one call would do."""
    if name in _CLICKS or name == "hover":
        x, y = _point(given.get("start_box"), program.space, "UnboundLocalError")
        program.actions.append(a.Move(x, y) if name == "hover" else a.Click(x, y, *_CLICKS[name]))
    elif name in ("drag", "select"):
        if given.get("start_box") and given.get("end_box"):
            ends = (_point(given["start_box"], program.space), _point(given["end_box"], program.space))
            program.actions.append(a.Drag(ends))
        else:
            program.nothing("a drag without both ends gives no code", span)
    elif name == "scroll":
        _scroll(program, given, span)
    elif name == "type":
        _type(program, str(given.get("content", "")), span)
    elif name == "hotkey":
        _hotkey(program, str(given.get("key", given.get("hotkey", ""))), span)
    elif name == "press":
        raise UnreadableError("UnboundLocalError: local variable 'hotkey' referenced before assignment", span)
    elif name in ("keydown", "keyup") or (name == "release" and parser == "dart"):
        key = _key(str(given.get("key", "")))
        if key is None:
            program.nothing(f"pyautogui knows no key {str(given.get('key', ''))[:40]!r}", span)
        else:
            program.actions.append(a.KeyDown(key) if name == "keydown" else a.KeyUp(key))
    else:
        program.nothing(f"unrecognized action type {name[:40]!r} gives a comment", span)


def _scroll(program: _Program, given: dict[str, str | tuple[float, ...]], span: Span) -> None:
    box = given.get("start_box")
    x, y = _point(box, program.space) if box else (None, None)
    direction = str(given.get("direction", "")).lower()
    if "up" not in direction and "down" not in direction:
        program.nothing(f"scrolling {direction[:40]!r} gives no code", span)
    else:
        program.actions.append(a.Scroll(x, y, 0, -NOTCHES if "up" in direction else NOTCHES))


def _hotkey(program: _Program, text: str, span: Span) -> None:
    """Keys that pyautogui does not know are left out of the chord without a word."""
    words = _LONE_ARROWS.get(text, text).split()
    keys = [key for word in words if (key := _key(" " if word == "space" else word)) is not None]
    if len(keys) < len(words) or not words:
        program.nothing(f"pyautogui does not know all keys of {text[:60]!r}", span)
    if keys:
        program.actions.append(a.Press(tuple(keys)))


def _key(name: str) -> str | None:
    """The key of pyautogui for a name; None where it knows none and does nothing. Names are lower-cased by it."""
    if len(name) == 1:
        return canonical_key(name) if name in _WRITABLE else None
    lowered = name.lower()
    return canonical_key(lowered) if lowered in _PYAUTOGUI_KEYS else None


def _type(program: _Program, content: str, span: Span) -> None:
    """The text goes through a second round of Python's escapes, inside of the source that types it."""
    if not content:
        program.nothing("an empty text gives no code", span)
        return
    escaped = _UNESCAPED_QUOTE.sub(r"\\'", content)
    enter = escaped.endswith(("\n", "\\n"))
    if enter:
        escaped = escaped.rstrip("\\n").rstrip("\n")
    typed = _second_reading(escaped)
    if typed is None:
        program.broken = ParseError("SyntaxError in the source that types the text", span)
        return
    written = "".join(char for char in typed if char in _WRITABLE)
    if written != typed:
        program.nothing("pyautogui drops what is not on an English keyboard", span)
    if written or enter:
        program.actions.append(a.Type(written + ("\n" if enter else "")))


def _second_reading(text: str) -> str | None:
    """What `'text'` is as a Python literal; None where it is none."""
    try:
        tree = parse_source(f"'{text}'")
    except UnreadableError:
        return None
    node = tree.body[0].value if len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr) else None
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _broken_thought(thought: str) -> str:
    """Why the docstring that holds the thought is no Python; "" where it is."""
    if "'''" in thought:
        return "SyntaxError: the thought closes the docstring that it is put into"
    try:
        parse_source(f"'''\n{thought}\n'''")
    except UnreadableError:
        return "SyntaxError: the thought has escapes that are none"
    return ""


# The keys of pyautogui 0.9.54 on X11, and the characters that its `write` can type; all others are passed over.
_WRITABLE = frozenset("\t\n\r\b" + "".join(map(chr, range(32, 127))))
_PYAUTOGUI_KEYS = frozenset(
    """backspace tab enter return shift ctrl alt pause capslock esc escape pgup pgdn pageup pagedown end home left up
    right down print printscreen prtsc prtscr prntscrn insert del delete win winleft winright apps add subtract multiply
    divide decimal numlock scrolllock shiftleft shiftright ctrlleft ctrlright altleft altright space""".split()
) | {*(f"num{digit}" for digit in range(10)), *(f"f{number}" for number in range(1, 25))}
