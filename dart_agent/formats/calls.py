"""A small grammar: `name(key='value', ...)` calls in a model's text. Read by hand, never evaluated.

    calls  := call*                      any white space or ';' between them
    call   := NAME '(' [arg (',' arg)*] ')'
    arg    := [NAME '='] value           without a name only where it is the sole argument
    value  := quoted | bare              bare: up to ',' or ')' outside of brackets

Quoted values take Python's escapes. Models forget to escape quotes (`'it's done'`), so a quote closes a value only
where an argument can end: before ')' or before `, name=`. Properly escaped text is never affected by that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dart_agent.formats.base import ParseError

_NAME = re.compile(r"\s*([A-Za-z_]\w*)")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(?!=)")
_SPACE = re.compile(r"[\s;]*")
_END_OF_ARGUMENT = re.compile(r"\s*(?:\)|,\s*(?:[A-Za-z_]\w*\s*=|\)))")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": ""}
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")
_OPEN, _CLOSE = "([{", ")]}"
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `arguments` maps names to values; the name of a sole unnamed one is ""."""

    name: str
    arguments: dict[str, str]


def parse_calls(text: str) -> list[Call]:
    """Read all of `text` as calls. Raises `ParseError`, also where there is none."""
    calls: list[Call] = []
    position = _skip(text, 0)
    while position < len(text):
        call, position = _call(text, position)
        calls.append(call)
        position = _skip(text, position)
    if not calls:
        raise ParseError("there is no action after 'Action:'")
    return calls


def quote(value: str) -> str:
    """A value as `parse_calls` reads it back: single quotes, everything else escaped that must be."""
    value = value.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + value.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + "'"


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _shown(text: str, position: int) -> str:
    rest = text[position : position + _SHOWN]
    return repr(rest + ("..." if position + _SHOWN < len(text) else ""))


def _call(text: str, position: int) -> tuple[Call, int]:
    """The call that starts here, and where it ends."""
    name = _NAME.match(text, position)
    if name is None or not text.startswith("(", end := _skip(text, name.end())):
        raise ParseError(f"expected an action such as click(start_box='(x,y)'), found {_shown(text, position)}")
    arguments: dict[str, str] = {}
    position = _skip(text, end + 1)
    while not text.startswith(")", position):
        key, value, position = _argument(text, position, name[1])
        if key in arguments or (arguments and "" in (key, *arguments)):
            raise ParseError(f"{name[1]}: arguments must have names of their own, found {key or value!r} again or bare")
        arguments[key] = value
        position = _skip(text, position)
        if text.startswith(",", position):
            position = _skip(text, position + 1)
        elif not text.startswith(")", position):
            raise ParseError(
                f"{name[1]}: expected ',' or ')' after the value of {key!r}, found {_shown(text, position)}"
            )
    return Call(name[1], arguments), position + 1


def _argument(text: str, position: int, call: str) -> tuple[str, str, int]:
    """(name or "", value, where it ends)."""
    match = _KEY.match(text, position)
    key = match[1] if match else ""
    position = match.end() if match else position
    if position >= len(text):
        raise ParseError(f"{call}: the closing ')' is missing")
    value, position = _quoted(text, position, call) if text[position] in "'\"" else _bare(text, position, call)
    return key, value, position


def _quoted(text: str, start: int, call: str) -> tuple[str, int]:
    """The value in quotes that starts here, unescaped."""
    mark = text[start]
    position = start + 1
    while (found := _next_mark(text, position, mark)) >= 0:
        if _END_OF_ARGUMENT.match(text, found + 1):
            return unescape(text[start + 1 : found]), found + 1
        position = found + 1
    raise ParseError(f"{call}: the text {_shown(text, start)} has no closing {mark} followed by ')'")


def _next_mark(text: str, position: int, mark: str) -> int:
    """Index of the next unescaped quote, -1 if there is none."""
    while position < len(text):
        if text[position] == "\\":
            position += 2
        elif text[position] == mark:
            return position
        else:
            position += 1
    return -1


def _bare(text: str, start: int, call: str) -> tuple[str, int]:
    """The value without quotes that starts here: `(5,3)`, `<point>5 3</point>`, `down`, `2.5`."""
    depth = 0
    for position in range(start, len(text)):
        char = text[position]
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE and depth:
            depth -= 1
        elif char in ",)" and not depth:
            return text[start:position].strip(), position
    raise ParseError(f"{call}: the closing ')' is missing")


def unescape(text: str) -> str:
    """Python's escapes of a string literal; unknown ones stay as they are, lone surrogates too."""
    if "\\" not in text:
        return text
    return _SURROGATES.sub(_join_pair, _ESCAPE.sub(_replace, text))


def _replace(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    if code is None:
        return _SIMPLE.get(match[4], match[0])
    number = int(code, 16)
    return chr(number) if number <= 0x10FFFF else match[0]


def _join_pair(match: re.Match[str]) -> str:
    """A surrogate pair is one character; half of one is no character, so its escape stays."""
    pair = match[0]
    return pair.encode("utf-16", "surrogatepass").decode("utf-16") if len(pair) == 2 else f"\\u{ord(pair):04x}"
