"""Near names for a name that there is not, in one form for all messages."""

import difflib
from collections.abc import Iterable

_LONGEST = 200
"""Characters of a name for which others are near: comparing takes time with its length."""


def suggest(name: str, known: Iterable[str], *, count: int = 1, otherwise: str | None = None) -> str:
    """The end of a message about an unknown name: "did you mean 'xvfb'?", or "known: docker, url, xvfb".

    At most `count` near names; where none is near, `otherwise` instead of known names that are too many to list.
    """
    names = list(dict.fromkeys(known))
    if near := near_names(name, names, count=count):
        return f"did you mean {' or '.join(map(repr, near))}?"
    return otherwise or f"known: {', '.join(names) or 'none'}"


def near_names(name: str, known: Iterable[str], *, count: int) -> list[str]:
    """At most `count` known names that are near, each once, the nearest first."""
    names = list(dict.fromkeys(known))
    return difflib.get_close_matches(name, names, n=count) if len(name) <= _LONGEST else []
