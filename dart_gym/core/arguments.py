"""Checks of what a caller gives: each returns a plain value, or raises an error that names the argument.

Invariants:
    - The error is an `OptionError`, or plain `ValueError` where the value is an action's and a policy must go on.
    - An integer of NumPy is as good as one of Python. Nothing is rounded, and no truth value passes as a number.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any

from dart_gym.core.errors import OptionError

SEEDS = 1 << 63
"""Seeds are below; databases and the wire hold them as integers of 64 bits with a sign."""


def is_boolean(value: Any) -> bool:
    """Return whether a value is a truth value: Python's, or an array library's, which would pass as 0 or 1."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def is_float(value: Any) -> bool:
    """Return whether a value is a float, Python's or an array library's."""
    return isinstance(value, float) or "float" in str(getattr(value, "dtype", ""))


def integer(name: str, value: Any, low: int, high: int | None = None, error: type[ValueError] = OptionError) -> int:
    """Return a value as a plain integer in [low, high]."""
    if type(value) is int and low <= value and (high is None or value <= high):  # mostly it is one already
        return value
    wanted = f"{name} must be an integer " + (f"of at least {low}" if high is None else f"in [{low}, {high}]")
    wanted += f", got {value!r:.200}"
    if is_boolean(value):
        raise error(f"{wanted}, a truth value")
    try:
        number = operator.index(value)
    except TypeError:
        hint = ", a float; round it first" if is_float(value) else f" ({type(value).__name__})"
        raise error(wanted + hint) from None
    if number < low or (high is not None and number > high):
        raise error(wanted)
    return number


def number(name: str, value: Any, low: float, high: float, error: type[ValueError] = OptionError) -> float:
    """Return a value as a plain finite number in [low, high]; an integer stays one."""
    if is_boolean(value) or isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise error(f"{name} must be a number, got {value!r:.200}")
    try:
        found: float = operator.index(value)
    except TypeError:
        try:
            found = float(value)
        except (TypeError, ValueError):  # an array of several numbers
            raise error(f"{name} must be one number, got {value!r:.200}") from None
    if not low <= found <= high or math.isinf(found):
        bounds = f"of at least {low:g}" if math.isinf(high) else f"in [{low:g}, {high:g}]"
        raise error(f"{name} must be a number {bounds}, got {value!r:.200}")
    return found


def seed_of(value: Any, name: str = "seed") -> int:
    """Return a seed as a plain integer."""
    return integer(name, value, 0, SEEDS - 1)


def flag(name: str, value: Any) -> bool:
    """Return a bool; refuse 0, 1 and texts."""
    if not is_boolean(value):
        raise OptionError(f"{name} must be True or False, got {value!r:.200}")
    return bool(value)


def text(name: str, value: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise OptionError(f"{name} must be a text that is not empty, got {value!r:.200}")
    return str(value)


def sequence(name: str, value: Any) -> list[Any]:
    """Return the members of a list, a tuple or an array; refuse a text or a mapping."""
    is_array = hasattr(value, "shape") and hasattr(value, "tolist")
    if isinstance(value, (str, bytes)) or not (isinstance(value, Sequence) or is_array):
        raise OptionError(f"{name} must be a list or a tuple, got {value!r:.200}")
    if is_array and len(value.shape) != 1:
        raise OptionError(f"{name} must have one dimension, got the shape {tuple(value.shape)}")
    return list(value)


def half_pair(text: str) -> tuple[int, int] | None:
    """Return where a text holds half a surrogate pair, which is no character; None if it holds none."""
    if text.isascii():
        return None
    try:
        text.encode()  # twenty times as fast as a search by an expression
    except UnicodeEncodeError as error:
        return error.start, error.start + 1
    return None
