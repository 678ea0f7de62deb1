"""The protocol of an action format: parse what a model wrote, write what it should, describe it in the prompt.

Invariants:
    - `parse` never raises because of a response, whatever it is: what cannot be understood is a `ParseError` value
      with a reason for the model to read and the place in the text. Nothing becomes a silent no-op.
    - Nothing that a model wrote is ever evaluated. Every length, depth and count is bounded, so that no response
      takes longer than tens of milliseconds.
    - Coordinates become pixels in one place, `CoordinateSpace.pixel`, whatever the format.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core.actions import Action

MAX_RESPONSE = 160_000
MAX_ACTIONS = 32
MAX_REASON = 280

HALF_PAIR = re.compile("[\ud800-\udfff]")

Response = str | bytes | Mapping[str, Any]
"""What a model answered: its text, or for APIs with tools the response object as a dict (or the JSON text of it)."""

Screen = tuple[int, int] | CoordinateSpace
"""(width, height) of the real screen in pixels, or a `CoordinateSpace` where the image that the model saw is known."""


@dataclass(frozen=True, slots=True)
class ParseError:
    """Something in a response that could not be understood.

    Attributes:
        reason: what is wrong and what is expected, in words for the model to read.
        span: characters [start, end) of the response's text; (0, 0) for a response that is no text.
    """

    reason: str
    span: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A model's response, understood.

    Attributes:
        thought: all that is not an action.
        actions: those that could be read, in order. Where there are errors, carry out none of them: the response
            means something that was not understood.
        errors: what could not be read; never empty where there are no actions.
    """

    thought: str
    actions: tuple[Action, ...]
    errors: tuple[ParseError, ...] = ()

    @property
    def problem(self) -> str:
        """All reasons in one line; "" where there are no errors."""
        return "; ".join(error.reason for error in self.errors)


class UnreadableError(ValueError):
    """How readers inside of a format give up. `parse` turns it into a `ParseError`."""

    def __init__(self, reason: str, span: tuple[int, int] | None = None) -> None:
        super().__init__(reason)
        self.span = span


class InexpressibleError(ValueError):
    """The format has no spelling for an action. Raised by `format` only: a bug of who asked, not of a model."""


class ActionFormat(Protocol):
    """One module of `dart_agent.formats` per implementation. Pure: text and values in, values out."""

    name: str

    def space(self, screen: Screen) -> CoordinateSpace:
        """How the numbers of this format relate to the screen."""

    def parse(self, response: Response, screen: Screen) -> ParsedResponse:
        """Thought, actions and errors of a response. Never raises because of the response."""

    def format(self, actions: Action | tuple[Action, ...], screen: Screen, thought: str = "") -> str:
        """Write actions as the model would (the JSON of its response for APIs with tools).

        `parse` returns them again.

        Raises:
            InexpressibleError: the format has no spelling for one of them.
        """

    def describe(self) -> str:
        """The action space as the prompt states it."""


class ToolFormat(ActionFormat, Protocol):
    """A format of an API with tools."""

    def tool_schema(self, screen: Screen) -> dict[str, Any]:
        """The tool as the request declares it, for a model that sees this screen."""


def one_of(known: Iterable[str], what: str, value: str) -> None:
    """Raise `TypeError` for an unknown option of a format; the message lists what is known."""
    if value not in known:
        raise TypeError(f"unknown {what} {value!r}; known: {', '.join(known)}")


def text_of(response: Response) -> str:
    """The text of a response that should be one. Raises `UnreadableError`: it is none, too long, or not UTF-8."""
    if isinstance(response, bytes):
        if len(response) > 4 * MAX_RESPONSE:
            raise UnreadableError(f"the response has {len(response)} bytes, at most {4 * MAX_RESPONSE} are read")
        try:
            response = response.decode()
        except UnicodeDecodeError as error:
            raise UnreadableError(f"the response is not UTF-8: {error.reason} at byte {error.start}") from None
    if not isinstance(response, str):
        raise UnreadableError(f"the response must be text, got {type(response).__name__}")
    if len(response) > MAX_RESPONSE:
        raise UnreadableError(
            f"the response has {len(response)} characters, at most {MAX_RESPONSE} are read",
            (MAX_RESPONSE, len(response)),
        )
    if not response.isascii() and (half := HALF_PAIR.search(response)):
        raise UnreadableError("the response holds half of a surrogate pair: it is no text", half.span())
    return response


def parse_error(error: ValueError, span: tuple[int, int] = (0, 0)) -> ParseError:
    """The value of an exception; `span` is used where it has none of its own."""
    own = error.span if isinstance(error, UnreadableError) else None
    reason = str(error) or type(error).__name__
    return ParseError(reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 3] + "...", own or span)


def as_tuple(actions: Action | tuple[Action, ...]) -> tuple[Action, ...]:
    """One action or several, as several. Raises ValueError for none."""
    given = (actions,) if isinstance(actions, Action) else tuple(actions)
    if not given:
        raise InexpressibleError("a response holds at least one action")
    return given


class Reading:
    """A response while it is being read: collects actions, and an error for what yields none."""

    def __init__(self, thought: str = "") -> None:
        self.thought = thought
        self.actions: list[Action] = []
        self.errors: list[ParseError] = []

    def fail(self, reason: str, span: tuple[int, int] = (0, 0)) -> None:
        """Note an error."""
        self.errors.append(parse_error(ValueError(reason), span))

    def result(self, nothing: str = "the response holds no action") -> ParsedResponse:
        """What was read; `nothing` is the reason where it is nothing at all."""
        if len(self.actions) > 4 * MAX_ACTIONS:
            self.fail(f"{len(self.actions)} actions in one response, at most {4 * MAX_ACTIONS} are read")
        if not self.actions and not self.errors:
            self.fail(nothing)
        return ParsedResponse(self.thought, tuple(self.actions), tuple(self.errors))
