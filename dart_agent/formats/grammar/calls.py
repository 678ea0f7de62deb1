"""A small grammar: `name(key='value', ...)` calls in a model's text. Read by hand, never evaluated.

    calls  := call*                      any white space or ';' between them
    call   := NAME '(' [arg (',' arg)*] ')'
    arg    := [NAME '='] value           without a name only where it is the sole argument
    value  := quoted | bare              bare: up to ',' or ')' outside of brackets

Quoted values take Python's escapes. Models forget to escape quotes (`'it's done'`), so a quote closes a value only
where an argument can end: before ')' or before `, name=`. Properly escaped text is never affected by that.
"""

import re
from dataclasses import dataclass

from dart_agent.formats.grammar.action_format import MAX_ACTIONS, UnreadableError

_HEAD = re.compile(r"([A-Za-z_]\w*)[\s;]*\([\s;]*")
_KEY = re.compile(r"([A-Za-z_]\w*)\s*=\s*(?!=)")
_SPACE = re.compile(r"[\s;]*")
_AFTER_VALUE = re.compile(r"[\s;]*([,)]?)[\s;]*")
_END_OF_ARGUMENT = r"\s*+(?:\)|,\s*+(?:[A-Za-z_]\w*+\s*+=|\)))"
_QUOTED = {  # one expression: a loop over the quotes of a hostile text takes ten times as long
    mark: re.compile(rf"{mark}((?:[^{mark}\\]++|\\.|{mark}(?!{_END_OF_ARGUMENT}))*+){mark}", re.DOTALL)
    for mark in "'\""
}
_BARE_PIECE = re.compile(r"[^,()\[\]{}]+|.", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": ""}
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")
_OPEN, _CLOSE = "([{", ")]}"
_SHOWN = 40
MAX_BARE = 2000
MAX_ARGUMENTS = 16


@dataclass(slots=True)
class Call:
    """One call. `arguments` maps names to values, the name of a sole unnamed one is ""; `span` is its place."""

    name: str
    arguments: dict[str, str]
    span: tuple[int, int] = (0, 0)


def parse_calls(text: str, position: int = 0) -> list[Call]:
    """Read all of `text` from `position` on as calls. Raises `UnreadableError`, also where there is none."""
    calls: list[Call] = []
    position = _skip(text, position)
    while position < len(text):
        if len(calls) == MAX_ACTIONS:
            raise UnreadableError(f"more than {MAX_ACTIONS} actions in one response", (position, len(text)))
        call = _call(text, position)
        calls.append(call)
        position = _skip(text, call.span[1])
    if not calls:
        raise UnreadableError("there is no action after 'Action:'", (position, position))
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


def _place(text: str, position: int) -> tuple[int, int]:
    return position, min(len(text), position + _SHOWN)


def _call(text: str, start: int) -> Call:
    """The call that starts here."""
    head = _HEAD.match(text, start)
    if head is None:
        raise UnreadableError(
            f"expected an action such as click(start_box='(x,y)'), found {_shown(text, start)}", _place(text, start)
        )
    name, position = head[1], head.end()
    arguments: dict[str, str] = {}
    while not text.startswith(")", position):
        key, value, end = _argument(text, position, name)
        if key in arguments or (arguments and (key == "" or "" in arguments)) or len(arguments) == MAX_ARGUMENTS:
            raise UnreadableError(
                f"{name}: arguments must have names of their own, found {(key or value)[:_SHOWN]!r} again or bare",
                (position, end),
            )
        arguments[key] = value
        after = _AFTER_VALUE.match(text, end)
        if after is None or not after[1]:
            raise UnreadableError(
                f"{name}: expected ',' or ')' after the value of {key!r}, found {_shown(text, end)}", _place(text, end)
            )
        position = after.end() if after[1] == "," else after.start(1)
    return Call(name, arguments, (start, position + 1))


def _argument(text: str, position: int, call: str) -> tuple[str, str, int]:
    """(name or "", value, where it ends)."""
    match = _KEY.match(text, position)
    key = match[1] if match else ""
    position = match.end() if match else position
    if position >= len(text):
        raise UnreadableError(f"{call}: the closing ')' is missing", (position, position))
    value, position = _quoted(text, position, call) if text[position] in "'\"" else _bare(text, position, call)
    return key, value, position


def _quoted(text: str, start: int, call: str) -> tuple[str, int]:
    """The value in quotes that starts here, unescaped."""
    if found := _QUOTED[text[start]].match(text, start):
        return unescape(found[1]), found.end()
    raise UnreadableError(
        f"{call}: the text {_shown(text, start)} has no closing {text[start]} followed by ')'", (start, len(text))
    )


def _bare(text: str, start: int, call: str) -> tuple[str, int]:
    """The value without quotes that starts here: `(5,3)`, `<point>5 3</point>`, `down`, `2.5`."""
    depth = 0
    for piece in _BARE_PIECE.finditer(text, start, min(len(text), start + MAX_BARE)):
        char = piece[0]
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE and depth:
            depth -= 1
        elif char in ",)" and not depth:
            return text[start : piece.start()].strip(), piece.start()
    raise UnreadableError(f"{call}: the closing ')' is missing", (start, len(text)))


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
