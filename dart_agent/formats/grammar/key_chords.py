"""Chords of keys as models write them: `ctrl c`, `ctrl+c`, `Ctrl + C`, `ctrl-c`, `ctrl page down`, `ctrl++`, `ctrl--`.

Two readings of spaces: in `read_chord` they join keys of one chord (UI-TARS: `ctrl c`), with `spaces_part` they stand
between chords that are pressed one after the other (xdotool: `Down Down Tab`, `ctrl+a Delete`). Two texts are sequences
in both readings: a key that is repeated without a modifier (`down down down`), since a key that is down cannot be
pressed, and a whole chord next to another key (`ctrl+a Delete`), since its own keys are joined by another mark.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from dart_agent.formats.grammar.action_format import UnreadableError
from dart_gym.core.keys import canonical_key

MAX_CHORD = 200
MAX_KEYS = 8
MAX_PRESSES = 100
_JOINTS = "+-"
_JOINTS_ONLY = frozenset(_JOINTS)
_NAMED_JOINTS = {"+": "plus", "-": "minus"}
_WRITTEN = {**_NAMED_JOINTS, "&": "ampersand"}  # between keys, their characters are read as joints
_EMACS = re.compile(r"[CMSA]-(?=.)")  # `C-c` is no chord of the keys C and c
_FULL_WIDTH = str.maketrans("\uff0b\uff0d", _JOINTS)
_MODIFIERS = frozenset({"ctrl", "ctrlright", "shift", "shiftright", "alt", "altright", "win", "winright"})

Chord = tuple[str, ...]


def read_chord(text: str) -> Chord:
    """Return the canonical keys of a chord, which may be empty.

    Raises:
        UnreadableError: if a key is unknown, or the chord is too long.
    """
    return _read_chord(_checked(text))


def read_keys(names: Sequence[object]) -> Chord:
    """Canonical keys of a list of names, each a key or a chord such as "ctrl+c". Raises `UnreadableError`."""
    if len(names) > MAX_KEYS:
        raise UnreadableError(f"a chord holds 1 to {MAX_KEYS} keys, got {len(names)}")
    return tuple(key for name in names for key in _of_name(name))


def read_presses(given: str | Sequence[object], *, spaces_part: bool = False) -> list[Chord]:
    """Chords to press one after the other: one, or several where keys repeat, or with `spaces_part` are set apart.

    Raises:
        UnreadableError: an unknown key, no key at all, or too many.
    """
    if isinstance(given, str):
        return list(_presses_of(_checked(given), spaces_part))
    if len(given) <= MAX_PRESSES and _holds_whole_chord(given):
        return _bounded(_sequence([_of_name(name) for name in given]))
    if len(given) > MAX_KEYS and len({str(name) for name in given[:MAX_PRESSES]}) > MAX_KEYS:
        return _bounded([read_keys(given)])  # says that it is too long
    return _bounded([tuple(key for name in given[: MAX_PRESSES + 1] for key in _of_name(name))])


@lru_cache(maxsize=1024)  # models press few different chords
def _presses_of(text: str, spaces_part: bool) -> tuple[Chord, ...]:
    spaces_part = spaces_part or (" " in text.strip() and _holds_whole_chord(_joined_by_plus(text.split())))
    return tuple(_bounded(list(_read_sequence(text)) if spaces_part else [read_chord(text)]))


def _bounded(chords: Sequence[Chord]) -> list[Chord]:
    found = [part for chord in chords for part in _apart(chord)]
    if len(found) > MAX_PRESSES:
        raise UnreadableError(f"at most {MAX_PRESSES} presses in one action, got {len(found)}")
    return found


def read_key(name: object) -> str:
    """The canonical name of one key. Raises `UnreadableError`."""
    if not isinstance(name, str) or not name or len(name) > MAX_CHORD:
        raise UnreadableError(f"{str(name)[:40]!r} is no key")
    try:
        return canonical_key(name)
    except ValueError as error:
        raise UnreadableError(str(error)) from None


def write_chord(keys: Sequence[str], between: str = " ") -> str:
    """Keys as `read_chord` reads them back."""
    return between.join(_WRITTEN.get(key, key) for key in keys)


def _checked(text: str) -> str:
    if len(text) > MAX_CHORD:
        raise UnreadableError(f"{text[:40]!r}... is no chord of keys such as 'ctrl c'")
    return text


def _apart(chord: Chord) -> list[Chord]:
    """Return a chord, or its keys one by one if it names a key twice."""
    if len(set(chord)) == len(chord):
        return [chord] if chord else []
    if _MODIFIERS.isdisjoint(chord):
        return [(key,) for key in chord]
    raise UnreadableError(f"the chord {' '.join(chord)[:80]} names a key twice: write one chord for each press")


def _of_name(name: object) -> Chord:
    """Keys of an entry of a list: one key, or a chord in one text."""
    if isinstance(name, str) and len(name) > 1 and any(joint in name[:MAX_CHORD] for joint in _JOINTS):
        if not _is_key(name):
            return read_chord(name)
    return (read_key(name),)


@lru_cache(maxsize=1024)  # models press few different chords
def _read_chord(text: str) -> Chord:
    if text and not text.strip():
        return (read_key(text[0]),)  # a sole space, newline or tab is that key
    return _keys(_words(text))


def _read_sequence(text: str) -> tuple[Chord, ...]:
    """Chords between spaces; a modifier by itself belongs to what follows it, and `page down` is one key."""
    if text and not text.strip():
        return ((read_key(text[0]),),)
    keys: list[Chord] = []
    words = _joined_by_plus(text.split())
    index = 0
    while index < len(words):
        parts = _parts(words[index])
        index += 1
        if not _is_key(parts[-1]) and index < len(words) and _is_key(pair := f"{parts[-1]} {words[index]}"):
            parts[-1] = pair  # `page down`, `ctrl+page down`
            index += 1
        keys.append(_keys(parts))
    return tuple(_sequence(keys))


def _sequence(parts: Sequence[Chord]) -> list[Chord]:
    """Chords one after the other; a modifier by itself belongs to what follows it."""
    found: list[Chord] = []
    held: Chord = ()
    for keys in parts:
        held += keys
        if not _MODIFIERS.issuperset(keys):
            found.append(held)
            held = ()
    return [*found, held] if held else found


def _holds_whole_chord(names: Sequence[object]) -> bool:
    """Return whether a name is a chord with a key that is no modifier, and another name holds such a key, too."""
    parts = [_parts(name[:MAX_CHORD]) if isinstance(name, str) and name else [] for name in names]
    keys = [[part for part in some if not _is_modifier(part)] for some in parts]
    return sum(map(bool, keys)) > 1 and any(own and len(some) > 1 for some, own in zip(parts, keys, strict=True))


def _joined_by_plus(words: list[str]) -> list[str]:
    """Words, with those beside a lone or trailing joint made one: `ctrl + c` and `ctrl+ c` are `ctrl+c`."""
    if _JOINTS_ONLY.issuperset(words):
        return words
    found: list[str] = []
    joins = False  # the next word belongs to the last one
    for index, word in enumerate(words):
        last = index == len(words) - 1
        if (
            joins
            or (found and word[0] == "+" and len(word) > 1)
            or (found and last and word in _JOINTS and found[-1] not in _JOINTS)
        ):
            found[-1] += ("" if found[-1][-1] in _JOINTS or word[0] == "+" else "+") + word
        elif found and word in _JOINTS:
            found[-1] += "+"
        else:
            found.append(word)
        joins = not last and len(found[-1]) > 1 and found[-1][-1] in _JOINTS and found[-1][-2] not in _JOINTS
    return found


def _words(text: str) -> list[str]:
    words = [part for word in _joined_by_plus(text.split()) for part in _parts(word)]
    if "&" in words[1:-1]:
        raise UnreadableError("'&' stands between keys: write a chord as 'ctrl+c', and chords one after the other")
    # A joint between two keys joins them; as a key of its own it stands at an end or is called `plus` or `minus`.
    return [word for index, word in enumerate(words) if word not in _JOINTS or index in (0, len(words) - 1)]


def _keys(words: list[str]) -> Chord:
    if any(len(word) > 1 and word[0].isupper() for word in words):
        words = [word.lower() for word in words]  # in `Ctrl+C` the capital is no Shift
    found: list[str] = []
    index = 0
    while index < len(words):
        pair = " ".join(words[index : index + 2])
        # Two words that are one key (`page down`), unless both are keys of their own (`up left`).
        joined = " " in pair and not all(map(_is_key, words[index : index + 2])) and _is_key(pair)
        found.append(read_key(pair if joined else words[index]))
        index += 2 if joined else 1
    return tuple(found)


def _parts(word: str) -> list[str]:
    """`ctrl+shift+c` and `ctrl-c` in their keys; a joint at the end is a key: `ctrl++`, `ctrl--`, `ctrl-+`, `ctrl-`."""
    if len(word) <= 1 or _is_key(word):
        return [word]
    if _EMACS.match(word):
        raise UnreadableError(f"{word[:40]!r} is written as in Emacs: write ctrl, alt or shift, as in 'ctrl+c'")
    if not word.isascii() and "+" not in word:
        word = word.translate(_FULL_WIDTH)
    if word[-1] in _JOINTS:
        head = word[:-2] if word[-2] in _JOINTS else word[:-1]
        return [*_parts(head), _NAMED_JOINTS[word[-1]]] if head else [word]  # the last is no key, which the reader says
    for joint in _JOINTS:
        left, found, right = word.partition(joint)
        if found:
            return [*_parts(left), *_parts(right)] if left else [word]
    return [word]


@lru_cache(maxsize=1024)
def _is_modifier(name: str) -> bool:
    return _is_key(name) and canonical_key(name) in _MODIFIERS


@lru_cache(maxsize=1024)
def _is_key(name: str) -> bool:
    try:
        canonical_key(name)
    except ValueError:
        return False
    return True
