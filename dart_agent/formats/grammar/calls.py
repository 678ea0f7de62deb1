"""A small grammar: `name(key='value', ...)` calls in a model's text. Read by hand, never evaluated.

    calls  := call*                      any white space or ';' between them
    call   := NAME '(' [arg (',' arg)*] ')'
    arg    := [NAME '='] value           without a name only where it is the sole argument
    value  := quoted | bare              bare: up to ',' or ')' outside of brackets

Quoted values take Python's escapes. Models forget to escape quotes (`'it's done'`), so a quote closes a value only
where an argument can end: before ')' or before `, name=`. Properly escaped text is never affected by that.

Text that cannot be read this way is read again with full-width brackets, commas, quotes and equals signs as marks of
the grammar, as Chinese models write them: `click（start_box=‘（1，2）’）`. Texts within quotes stay as they are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dart_agent.formats.grammar.action_format import MAX_ACTIONS, UnreadableError

_SPACE = re.compile(r"[\s;]*")
_USUAL = re.compile(  # what most calls look like, read four times as fast: at most two texts without quotes and escapes
    r"([A-Za-z_]\w*)\((?:([A-Za-z_]\w*)='([^'\\]*+)'(?:, ([A-Za-z_]\w*)='([^'\\]*+)')?)?\)"
)


class _Grammar:
    """The expressions of a spelling: its brackets, comma, equals sign and quotes."""

    def __init__(self, opening: str, closing: str, comma: str, equals: str, quotes: Sequence[str]) -> None:
        end = rf"\s*+(?:[{closing}]|[{comma}]\s*+(?:[A-Za-z_]\w*+\s*+[{equals}]|[{closing}]))"
        self.closing = closing
        self.closings = tuple(closing)
        self.comma = comma
        self.head = re.compile(rf"([A-Za-z_]\w*)[\s;]*[{opening}][\s;]*")
        self.key = re.compile(rf"([A-Za-z_]\w*)\s*[{equals}]\s*(?![{equals}])")
        self.after_value = re.compile(rf"[\s;]*([{comma}{closing}]?)[\s;]*")
        self.bare_piece = re.compile(rf"[^{comma}{opening}{closing}\[\]{{}}]+|.", re.DOTALL)
        self.quoted = {  # one expression: a loop over the quotes of a hostile text takes ten times as long
            mark: re.compile(rf"[{kind}]((?>(?:[^{kind}\\]++|\\.|[{kind}](?!{end}))*))[{kind}]", re.DOTALL)
            for kind in quotes
            for mark in kind
        }


_NARROW = _Grammar("(", ")", ",", "=", ("'", '"'))
_WIDE = _Grammar("(\uff08", ")\uff09", ",\uff0c", "=\uff1d", ("'\u2018\u2019\uff07", '"\u201c\u201d\uff02'))
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": ""}
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")
_OPEN, _CLOSE = "([{\uff08", ")]}\uff09"
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
    """Read all of `text` from `position` on as calls. Raises `UnreadableError`, also for no calls."""
    calls, end = leading_calls(text, position)
    if end < len(text):
        raise expected_call(text, end)
    if not calls:
        raise UnreadableError("there is no action after 'Action:'", (position, position))
    return calls


def leading_calls(text: str, position: int = 0) -> tuple[list[Call], int]:
    """The calls that a text has from a place on, and where they end: at the first thing that is no call.

    Raises:
        UnreadableError: a call that begins and is not read to its end, or too many of them.
    """
    calls: list[Call] = []
    position = _skip(text, position)
    while position < len(text):
        call = _call(text, position)
        if call is None:
            break
        if len(calls) == MAX_ACTIONS:
            raise UnreadableError(f"more than {MAX_ACTIONS} actions in one response", (position, len(text)))
        calls.append(call)
        position = call.span[1]
        if position < len(text):
            position = _skip(text, position)
    return calls, position


def expected_call(text: str, place: int) -> UnreadableError:
    """The error that there is no call at a place."""
    return UnreadableError(
        f"expected an action such as click(start_box='(x,y)'), found {_shown(text, place)}", _place(text, place)
    )


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


def _call(text: str, start: int) -> Call | None:
    """The call that starts here; None where none does."""
    if usual := _USUAL.match(text, start):
        name, key, value, second, other = usual.groups()
        if key is None:
            return Call(name, {}, usual.span())
        if second is None:
            return Call(name, {key: value}, usual.span())
        if second != key:
            return Call(name, {key: value, second: other}, usual.span())
    if head := _NARROW.head.match(text, start):
        try:
            return _read(text, start, head, _NARROW)
        except UnreadableError:
            if text.isascii():
                raise
            return _read(text, start, head, _WIDE)
    if text.isascii() or (head := _WIDE.head.match(text, start)) is None:
        return None
    return _read(text, start, head, _WIDE)


def _read(text: str, start: int, head: re.Match[str], grammar: _Grammar) -> Call:
    """The call whose name and opening bracket are `head`."""
    name = head[1]
    position = head.end()
    closing = grammar.closings
    arguments: dict[str, str] = {}
    while not text.startswith(closing, position):
        key, value, end = _argument(text, position, name, grammar)
        if key in arguments or (arguments and (key == "" or "" in arguments)) or len(arguments) == MAX_ARGUMENTS:
            raise UnreadableError(
                f"{name}: arguments must have names of their own, found {(key or value)[:_SHOWN]!r} again or bare",
                (position, end),
            )
        arguments[key] = value
        after = grammar.after_value.match(text, end)
        if after is None or not after[1]:
            raise UnreadableError(
                f"{name}: expected ',' or ')' after the value of {key!r}, found {_shown(text, end)}", _place(text, end)
            )
        position = after.end() if after[1] in grammar.comma else after.start(1)
    return Call(name, arguments, (start, position + 1))


def _argument(text: str, position: int, call: str, grammar: _Grammar) -> tuple[str, str, int]:
    """(name or "", value, where it ends)."""
    match = grammar.key.match(text, position)
    key = match[1] if match else ""
    position = match.end() if match else position
    if position >= len(text):
        raise UnreadableError(f"{call}: the closing ')' is missing", (position, position))
    if (quoted := grammar.quoted.get(text[position])) is None:
        if grammar is _NARROW and text[position] in _WIDE.quoted:
            raise UnreadableError(f"{call}: no plain quote begins {_shown(text, position)}", _place(text, position))
        value, position = _bare(text, position, call, grammar)
    elif found := quoted.match(text, position):
        value, position = unescape(found[1]), found.end()
    else:
        raise UnreadableError(
            f"{call}: the text {_shown(text, position)} has no closing {text[position]} followed by ')'",
            (position, len(text)),
        )
    return key, value, position


def _bare(text: str, start: int, call: str, grammar: _Grammar) -> tuple[str, int]:
    """The value without quotes that starts here: `(5,3)`, `<point>5 3</point>`, `down`, `2.5`."""
    depth = 0
    for piece in grammar.bare_piece.finditer(text, start, min(len(text), start + MAX_BARE)):
        char = piece[0]
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE and depth:
            depth -= 1
        elif not depth and (char in grammar.comma or char in grammar.closing):
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
