"""Chords of keys as models write them: `ctrl c`, `ctrl+c`, `Ctrl + C`, `ctrl page down`, `ctrl +`."""

from collections.abc import Sequence
from functools import lru_cache

from dart_agent.formats.grammar.action_format import UnreadableError
from dart_gym.core.keys import canonical_key

MAX_CHORD = 200


def read_chord(text: str) -> tuple[str, ...]:
    """Canonical keys of a chord in one text, maybe empty. Raises `UnreadableError`: an unknown key, or too long."""
    if len(text) > MAX_CHORD:
        raise UnreadableError(f"{text[:40]!r}... is no chord of keys such as 'ctrl c'")
    return _read_chord(text)


def read_keys(names: Sequence[str]) -> tuple[str, ...]:
    """Canonical keys of a list of names. Raises `UnreadableError` for an unknown key."""
    if len(names) > 8:
        raise UnreadableError(f"a chord holds 1 to 8 keys, got {len(names)}")
    return tuple(read_key(name) for name in names)


def read_key(name: str) -> str:
    """The canonical name of one key. Raises `UnreadableError`."""
    if not isinstance(name, str) or not name or len(name) > MAX_CHORD:
        raise UnreadableError(f"{str(name)[:40]!r} is no key")
    try:
        return canonical_key(name)
    except ValueError as error:
        raise UnreadableError(str(error)) from None


def write_chord(keys: Sequence[str], between: str = " ") -> str:
    """Keys as `read_chord` reads them back."""
    return between.join("plus" if key == "+" else key for key in keys)


@lru_cache(maxsize=1024)  # models press few different chords
def _read_chord(text: str) -> tuple[str, ...]:
    if text and not text.strip():
        return (read_key(text[0]),)  # a sole space, newline or tab is that key
    words = [part for word in text.split() for part in _plus_parts(word)]
    # A plus between two keys joins them; as a key of its own it stands at an end or is called `plus`.
    words = [word for index, word in enumerate(words) if word != "+" or index in (0, len(words) - 1)]
    if any(len(word) > 1 and word[0].isupper() for word in words):
        words = [word.lower() for word in words]  # in `Ctrl+C` the capital is a way of writing, not a Shift
    found: list[str] = []
    index = 0
    while index < len(words):
        pair = " ".join(words[index : index + 2])
        # Two words that are one key (`page down`), unless both are keys of their own (`up left`).
        joined = " " in pair and not all(map(_is_key, words[index : index + 2])) and _is_key(pair)
        found.append(read_key(pair if joined else words[index]))
        index += 2 if joined else 1
    return tuple(found)


def _plus_parts(word: str) -> list[str]:
    """`ctrl+shift+c` and `ctrl-c` in their keys; `+`, `-`, `ctrl++` and names that contain a dash stay whole keys."""
    if len(word) == 1 or _is_key(word):
        return [word]
    for mark in "+-":
        if mark in word:
            parts = word.removesuffix(2 * mark).split(mark) if word.endswith(2 * mark) else word.split(mark)
            return [part for part in parts if part] + ([mark] if word.endswith(2 * mark) else [])
    return [word]


def _is_key(name: str) -> bool:
    try:
        canonical_key(name)
    except ValueError:
        return False
    return True
