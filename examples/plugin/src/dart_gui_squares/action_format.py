"""The action format "point": `point 40 72` is a click, in pixels of the screen; anything else is an error.

A format reads what a model writes (`parse`), and writes it (`format`), as demonstrations need. It is pure, and never
raises because of a response: what cannot be read is a `ParseError`, a value that the model is told of.
"""

from __future__ import annotations

import re

from dart_agent.formats import InexpressibleError, ParsedResponse, ParseError, Response, Screen
from dart_agent.formats.grammar.action_format import as_tuple, text_of
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym import Click
from dart_gym.core.actions import Action

_POINT = re.compile(r"\s*point (\d{1,5}) (\d{1,5})\s*")


class PointFormat:
    """`dart_agent.formats.ActionFormat` of clicks alone.

    A class attribute `variants` would make `point:NAME` stand for arguments of the class.
    """

    name = "point"

    def space(self, screen: Screen) -> CoordinateSpace:
        """What numbers mean: pixels of the screen."""
        return CoordinateSpace.of(screen)

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """The click that a response asks for."""
        try:
            text = text_of(response)
            found = _POINT.fullmatch(text)
            if found is None:
                raise ValueError("write 'point X Y'")
            x, y = self.space(screen).pixel(float(found[1]), float(found[2]))
        except ValueError as error:
            return ParsedResponse("", (), (ParseError(str(error), (0, len(response))),))
        return ParsedResponse("", (Click(x, y),))

    def format(self, actions: Action | tuple[Action, ...], screen: Screen, thought: str = "") -> str:
        """A click as a model would write it; `parse` reads it again."""
        match as_tuple(actions):
            case (Click(x=int(x), y=int(y), button="left", count=1),):
                return "point {} {}".format(*self.space(screen).written(x, y))
        raise InexpressibleError("the format 'point' has no spelling but for one left click")

    def describe(self) -> str:
        """The action space as a prompt states it."""
        return "Answer with `point X Y`: the click, in pixels from the upper left corner."
