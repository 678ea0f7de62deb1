"""Text of a desktop, a model or a file, made safe to be shown: on a terminal, in a log, in a client's window. Pure."""

import unicodedata

from rich.markup import escape

_KEPT = "\n\t"
_HIDING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINING = "\u200c\u200d"  # of scripts and emoji that need them


def printable(text: str) -> str:
    """Return a text in which every control character is written as its escape: it moves no cursor and hides nothing.

    Those are the ones that begin a terminal's escape sequences, turn the direction of writing, or have no shape.
    """
    if text.isprintable():
        return text
    return "".join(character if _is_plain(character) else _escape(character) for character in text)


def as_cell(text: str) -> str:
    """Return a text as Rich's tables and consoles take it: printable, and without markup even if it has brackets."""
    return escape(printable(text))


def _is_plain(character: str) -> bool:
    return character in _KEPT or character in _JOINING or unicodedata.category(character) not in _HIDING


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
