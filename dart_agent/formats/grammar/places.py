"""A place as a text: `(x,y)`, `[x, y]`, a box of four numbers, with or without the tokens of a model around it.

Examples: `(10,20)`, `[[10, 20]]`, `(10%, 20%)`, `<point>10 20</point>`, `<|box_start|>(5,10),(15,30)<|box_end|>`.
"""

import re
import unicodedata

from dart_agent.formats.grammar.action_format import UnreadableError
from dart_agent.models.coordinates import CoordinateSpace

MAX_PLACE = 1000
_PLAIN = re.compile(r"\((\d{1,5}),(\d{1,5})\)")
_POINT = re.compile(r"<point>(\d{1,5}(?:\.\d{1,9})?) (\d{1,5}(?:\.\d{1,9})?)</point>")
_TAG = re.compile(r"<\|?/?[A-Za-z_]{1,20}\|?>|[()\[\]]")
_NUMBERS = re.compile(r"\s*[-+]?\d+(?:\.\d*)?%?(?:(?:\s*,\s*|\s+)[-+]?\d+(?:\.\d*)?%?){1,3}\s*")
_NUMBER = re.compile(r"([-+]?\d+(?:\.\d*)?)(%?)")


def read_place(what: str, value: str, space: CoordinateSpace, like: str = "(x,y)") -> tuple[int, int]:
    """Return the pixel of a place, of a box the one of its centre.

    Args:
        what: the call, for messages.
        value: the text.
        space: what its numbers mean.
        like: how the format writes a place, for messages.

    Raises:
        UnreadableError: it is no place, or has three numbers.
    """
    if plain := _PLAIN.fullmatch(value):
        return space.pixel(int(plain[1]), int(plain[2]))
    if point := _POINT.fullmatch(value):
        return space.pixel(float(point[1]), float(point[2]))
    if not value.isascii():
        value = unicodedata.normalize("NFKC", value[: MAX_PLACE + 1]).replace("\u3001", ",")  # full-width marks
    bare = _TAG.sub(" ", value) if len(value) <= MAX_PLACE else ""
    if not _NUMBERS.fullmatch(bare):
        raise UnreadableError(f"{what}: {value[:60]!r} is not a place; write it as '{like}'")
    numbers = [
        float(number) if not percent else float(number) / 100 * space.model[index % 2]
        for index, (number, percent) in enumerate(_NUMBER.findall(bare))
    ]
    if len(numbers) == 3:
        raise UnreadableError(f"{what}: {value[:60]!r} has three numbers; a place has two, a box four")
    return space.pixel((numbers[0] + numbers[-2]) / 2, (numbers[1] + numbers[-1]) / 2)
