"""All names of keys that X defines, as `xdotool` takes them: `underscore`, `KP_Delete`, `XF86AudioNext`, `U20AC`."""

import re
from functools import cache
from pathlib import Path

_CODE_POINT = re.compile(r"U\+?([0-9A-F]{4,6})", re.IGNORECASE)
_NUMBER = re.compile(r"0x([0-9A-F]{2,8})", re.IGNORECASE)
_UNICODE = 0x01000000


@cache
def _table() -> tuple[dict[str, str], dict[str, int]]:
    """Characters by the names of their keysyms, and the other keysyms by name."""
    characters: dict[str, str] = {}
    others: dict[str, int] = {}
    for line in (Path(__file__).parent / "keysyms.txt").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(" ")
        if value.startswith("U+"):
            characters[name] = chr(int(value[2:], 16))
        elif value.startswith("0x"):
            others[name] = int(value, 16)
    return characters, others


@cache
def _spellings() -> dict[str, str]:
    """Names by their lower-case spelling; where two differ in case only, the lower-case one counts."""
    characters, others = _table()
    return {name.lower(): name for name in sorted([*characters, *others], key=str.islower)}


def keysym_value(name: str) -> int | None:
    """Return the keysym of a name of X; None for an unknown name."""
    characters, others = _table()
    if name in characters:
        code = ord(characters[name])
        return code if code < 0x100 else _UNICODE | code
    return others.get(name)


def keysym_meaning(text: str) -> str | None:
    """Return what a name of X means: a character, or the name in X's own spelling; None for an unknown name.

    Args:
        text: a name in any case (an exact spelling goes first), `U20AC`, or a keysym as `0xff0d`.
    """
    characters, others = _table()
    if text.isascii():
        for name in (text, _spellings().get(text.lower(), "")):
            if name in characters:
                return characters[name]
            if name in others:
                return name
        if point := _CODE_POINT.fullmatch(text):
            return _character(int(point[1], 16))
        if number := _NUMBER.fullmatch(text):
            return _of_value(int(number[1], 16))
    return None


def _character(code: int) -> str | None:
    return chr(code) if 0x20 <= code <= 0x10FFFF and not (0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000) else None


def _of_value(value: int) -> str | None:
    if value < 0x100 or value >= _UNICODE + 0x100:
        character = _character(value if value < 0x100 else value - _UNICODE)
        if character:
            return character
    return next((name for name, known in _table()[1].items() if known == value), None)
