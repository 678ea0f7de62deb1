"""Fields of a JSON object or of a call, read by type; what is left over is an error."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from dart_agent.formats.grammar.action_format import MAX_ACTIONS, UnreadableError
from dart_agent.formats.grammar.key_chords import MAX_KEYS, Chord, read_chord, read_keys, read_presses
from dart_agent.formats.grammar.pointer import notches
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core.actions import MAX_WAIT_S, Button, Press
from dart_gym.core.arguments import half_pair


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of a list of fields. Raises `UnreadableError` where one is there twice: the last would replace it."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise UnreadableError(f"{twice[:40]!r} is given twice in one JSON object: write an object for each action")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_each_once, strict=False)  # a text may hold raw newlines
_START = re.compile("[{\uff5b]")
_TRIES = 64
_NARROWED = 4  # tries in which full-width punctuation is read
_MISSING = object()
MAX_NOTCHES = 100
"""Largest number of notches of one turn of the wheel."""
DIRECTIONS = {"down": (0, 1), "up": (0, -1), "right": (1, 0), "left": (-1, 0)}
Point = tuple[int, int]


class Fields:
    """The fields of one action. Names are tried in order; null counts as not given."""

    def __init__(self, given: Mapping[Any, Any], what: str, space: CoordinateSpace) -> None:
        self.what, self.space = what[:60], space
        self._given = {key: value for key, value in given.items() if value is not None}

    def take(self, *names: str) -> Any:
        """The value of the first of some names that is given, whatever its type; None where none is."""
        for name in names:
            if (value := self._given.pop(name, _MISSING)) is not _MISSING:
                return value
        return None

    @property
    def used_up(self) -> bool:
        """Return whether every field was taken."""
        return not self._given

    def has(self, *names: str) -> bool:
        """Return whether one of some names is given and not yet taken."""
        return any(name in self._given for name in names)

    def text(self, *names: str, default: str | None = None) -> str:
        """Return a text.

        Raises:
            UnreadableError: if it is not a text, or missing without a default.
        """
        value = self.take(*names)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self._wrong(names[0], "text", value)
        if half_pair(value):
            raise UnreadableError(f"{self.what}: {names[0]} holds half of a surrogate pair, which is no character")
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        """A finite number, also one that is written as text."""
        value = self.take(*names)
        if value is None and default is not None:
            return default
        if not isinstance(number := _number(value), (int, float)):
            raise self._wrong(names[0], "a number", value)
        return number

    def integer(self, *names: str, default: int | None = None) -> int:
        """A whole number."""
        number = self.number(*names, default=default)
        if number != int(number):
            raise self._wrong(names[0], "a whole number", number)
        return int(number)

    def seconds(self, *names: str, default: float | None = None) -> float:
        """A time that a desktop may wait."""
        return self._within(names[0], self.number(*names, default=default), 0, MAX_WAIT_S)

    def count(self, *names: str, default: int | None = None, least: int = 1, most: int = 3) -> int:
        """A number of clicks, or of something else that is repeated."""
        return int(self._within(names[0], self.integer(*names, default=default), least, most))

    def wheel(self, *names: str, default: float | None = None, size: float = 1, signed: bool = True) -> int:
        """A turn of the wheel in notches, of a number that is `size` for each; no turn is longer than `MAX_NOTCHES`."""
        most = MAX_NOTCHES * size + (0.0 if size == 1 else 0.001)  # pixels are written to a thousandth
        given = self.integer(*names, default=int(default) if default is not None else None) if size == 1 else None
        number = self.number(*names, default=default) if given is None else given
        return notches(self._within(names[0], number, -most if signed else 0, most), size)

    def _within(self, name: str, number: float, least: float, most: float) -> float:
        if not least <= number <= most:
            raise UnreadableError(f"{self.what}: {name} must be in [{least:g}, {most:g}], got {shown(number)}")
        return number

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false."""
        value = self.take(*names)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(names[0], "true or false", value)
        return default if value is None else value

    def button(self, *names: str, default: str = "left") -> Button:
        """A mouse button that the desktops have."""
        value = self.text(*names, default=default).lower()
        if value not in ("left", "middle", "right"):
            raise self._wrong(names[0], "left, middle or right", value)
        return cast(Button, value)

    def direction(self, *names: str) -> tuple[int, int]:
        """Signs of `dx` and `dy` of one of `DIRECTIONS`, in any case."""
        value = self.text(*names)
        if (found := DIRECTIONS.get(value.strip().lower())) is None:
            raise self._wrong(names[0], "down, up, left or right", value)
        return found

    def keys(self, *names: str) -> tuple[str, ...]:
        """Keys in a list or as one text; empty where not given."""
        value = self.take(*names)
        if value is None:
            return ()
        if isinstance(value, str):
            return read_chord(value)
        if not isinstance(value, Sequence):
            raise self._wrong(names[0], "a list of keys", value)
        return read_keys(value)

    def need_keys(self, *names: str) -> Chord:
        """A chord that must be given."""
        if not (found := self.keys(*names)):
            raise UnreadableError(f"{self.what} needs {names[0]}: a key or a chord such as 'ctrl+c'")
        return self.chord(found)

    def presses(self, *names: str, spaces_part: bool = False) -> list[Press]:
        """Chords to press in order: one, or several where keys repeat, or with `spaces_part` as xdotool parts them."""
        value = self.take(*names)
        if isinstance(value, str) or (isinstance(value, Sequence) and not isinstance(value, bytes)):
            found = [Press(self.chord(keys)) for keys in read_presses(value, spaces_part=spaces_part)]
            if found:
                return found
        elif value is not None:
            raise self._wrong(names[0], "a key or a list of keys", value)
        raise UnreadableError(f"{self.what} needs {names[0]}: a key or a chord such as 'ctrl+c'")

    def chord(self, keys: Chord) -> Chord:
        """A chord that a desktop can press. Raises `UnreadableError` for too many keys."""
        if len(keys) > MAX_KEYS:
            raise UnreadableError(f"{self.what}: a chord holds 1 to {MAX_KEYS} keys, got {len(keys)}")
        return keys

    def one_key(self, *names: str) -> str:
        """One key."""
        found = self.keys(*names)
        if len(found) != 1:
            raise UnreadableError(f"{self.what} takes one key, got {len(found)}")
        return found[0]

    def pair(self, *names: str) -> Point | None:
        """A point `[x, y]`; None where not given."""
        value = self.take(*names)
        return None if value is None else self.point_of(value, names[0])

    def xy(self) -> Point | None:
        """A point in the fields `x` and `y`; None where neither is given."""
        if not self.has("x", "y"):
            return None
        x, y = self.take("x"), self.take("y")
        return self.point_of((x, y), "x and y")

    def point_of(self, value: Any, name: str) -> Point:
        """A point of two numbers; of four the centre of their box."""
        values = value[:5] if isinstance(value, (list, tuple)) else ()
        read = [self._coordinate(item, index % 2) for index, item in enumerate(values)]
        numbers = [number for number in read if number is not None]
        if len(numbers) != len(values) or len(numbers) not in (2, 4):
            raise self._wrong(name, "two numbers", value)
        if len(numbers) == 2:
            return self.space.pixel(*numbers)
        left, top, right, bottom = numbers
        return self.space.pixel((left + right) / 2, (top + bottom) / 2)

    def _coordinate(self, value: Any, axis: int) -> float | int | None:
        """A number, or a share of the screen such as "50%" in the model's own unit."""
        if isinstance(value, str) and len(value) <= 40 and (text := value.strip()).endswith(("%", "\uff05")):
            share = _number(text[:-1])
            return None if share is None else share / 100 * self.space.model[axis]
        return _number(value)

    def need(self, point: Point | None, name: str) -> Point:
        """A point that must be given."""
        if point is None:
            raise UnreadableError(f"{self.what} needs {name}")
        return point

    def check_all_used(self) -> None:
        """Raise `UnreadableError` for fields that the action does not have."""
        if self._given:
            names = ", ".join(sorted(str(name)[:40] or "a value without a name" for name in list(self._given)[:5]))
            raise UnreadableError(f"{self.what} has no argument {names}")

    def _wrong(self, name: str, expected: str, value: Any) -> UnreadableError:
        if value is None:
            return UnreadableError(f"{self.what} needs {name}: {expected}")
        return UnreadableError(f"{self.what}: {name} must be {expected}, got {shown(value)}")


def _number(value: Any) -> float | int | None:
    """A finite number within bounds, or None."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= 1e15 and math.isfinite(value) else None


def shown(value: Any) -> str:
    """A value as an error message shows it: short, whatever it is."""
    if isinstance(value, (str, bytes)):
        return repr(value[:40])
    if isinstance(value, (bool, float, type(None))) or (isinstance(value, int) and abs(value) < 1 << 64):
        return repr(value)
    if isinstance(value, (list, tuple)) and len(value) <= 4:
        return f"[{', '.join(shown(item) if not isinstance(item, (list, tuple, dict)) else '...' for item in value)}]"
    return f"a {type(value).__name__}" if not isinstance(value, int) else "a huge number"


@dataclass(frozen=True, slots=True)
class Found:
    """A JSON object in a text, and its place."""

    value: dict[str, Any]
    span: tuple[int, int]


def json_objects(text: str, start: int = 0, end: int | None = None) -> Iterator[Found]:
    """Return the outermost JSON objects in a text, in order.

    Raises:
        UnreadableError: if they are nested too deeply, or there are too many.
    """
    end = len(text) if end is None else end
    text = text[:end]
    tries = count = 0
    while (mark := _START.search(text, start)) and tries < _TRIES:
        try:
            value, start = _decode(text, mark.start(), narrowed=tries < _NARROWED)
        except RecursionError:
            raise UnreadableError("JSON is nested too deeply", (mark.start(), end)) from None
        except UnreadableError as error:
            raise UnreadableError(str(error), (mark.start(), end)) from None
        except ValueError:  # also a number of too many digits
            tries, start = tries + 1, mark.end()
            continue
        count += 1
        if count > MAX_ACTIONS:
            raise UnreadableError(f"more than {MAX_ACTIONS} JSON objects in one response", (mark.start(), end))
        yield Found(value, (mark.start(), start))


def _decode(text: str, start: int, *, narrowed: bool) -> tuple[Any, int]:
    """The JSON value that starts here, and where it ends. Raises ValueError."""
    try:
        return _DECODER.raw_decode(text, start)
    except UnreadableError:
        raise
    except ValueError:
        if not narrowed or text.isascii() or not _WIDE.search(text, start):
            raise
        value, end = _DECODER.raw_decode(_narrow(text[start:]))
        return value, start + end


_PUNCTUATION = str.maketrans("\uff5b\uff5d\uff3b\uff3d\uff1a\uff0c\u201c\u201d\uff02", "{}[]:," + 3 * '"')
_JSON_STRING = re.compile(r'"(?>(?:[^"\\]++|\\.)*)"|[\u201c\uff02][^"\u201d\uff02\n]*+[\u201d\uff02]', re.DOTALL)
_WIDE = re.compile("[\uff5b\uff5d\uff3b\uff3d\uff1a\uff0c\u201c\u201d\uff02]")


def _narrow(text: str) -> str:
    """A text whose full-width brackets, colons, commas and quotes are JSON's, but for those within strings."""
    if text.isascii() or not _WIDE.search(text):
        return text
    parts, place = [], 0
    for string in _JSON_STRING.finditer(text):
        inner = string[0]
        parts += [text[place : string.start()].translate(_PUNCTUATION), f'"{inner[1:-1]}"']
        place = string.end()
    return "".join((*parts, text[place:].translate(_PUNCTUATION)))


def read_json(text: str, span: tuple[int, int] = (0, 0)) -> Any:
    """The value of a JSON text; full-width punctuation counts as JSON's. Raises `UnreadableError`."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise UnreadableError("JSON is nested too deeply", span) from None
    except UnreadableError as error:
        raise UnreadableError(str(error), span) from None
    except ValueError as error:
        if (narrow := _narrow(text)) != text:
            return read_json(narrow, span)
        raise UnreadableError(f"no valid JSON: {str(error)[:120]}", span) from None


def read_json_values(text: str, span: tuple[int, int] = (0, 0)) -> list[Any]:
    """Return the values of consecutive JSON texts, or of one JSON list. Raises `UnreadableError`."""
    try:
        value = read_json(text, span)
    except UnreadableError as problem:
        found = [item.value for item in json_objects(text)]
        rest = text if not found else _between(text)
        if rest.strip(" \t\r\n,;"):
            raise problem from None
        return found
    return value if isinstance(value, list) else [value]


def _between(text: str) -> str:
    """Return what stands outside of the JSON objects of a text."""
    parts, place = [], 0
    for item in json_objects(text):
        parts.append(text[place : item.span[0]])
        place = item.span[1]
    return "".join((*parts, text[place:]))
