"""The protocol of an action format: parse what a model wrote, write what it should, describe it in the prompt.

Invariants:
    - `parse` never raises, regardless of the response: what cannot be understood is a `ParseError` value
      with a reason for the model to read and the place in the text. Nothing becomes a silent no-op.
    - Formats read the answer only: `Reading.answer` takes the reasoning off first (see `reasoning`). A response that
      ends inside its reasoning is an `EndedWhileThinking`.
    - Nothing that a model wrote is ever evaluated. Every length, depth and count is bounded, so that no response
      takes longer than tens of milliseconds.
    - Coordinates of all formats become pixels in one place, `CoordinateSpace.pixel`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dart_agent.formats.grammar.reasoning import MESSAGE_FIELDS, Split, message_text, split_reasoning, unwrapped
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core.actions import Action, Press
from dart_gym.core.arguments import half_pair
from dart_gym.core.errors import words_of

MAX_RESPONSE = 160_000
"""Characters of an answer; with its reasoning a response may have half as many again."""
MAX_TEXT = MAX_RESPONSE * 3 // 2
MAX_ACTIONS = 32
MAX_REASON = 280

HALF_PAIR = re.compile("[\ud800-\udfff]")

Response = str | bytes | Mapping[str, Any]
"""A model's answer: its text, a chat message with `content` and maybe `reasoning_content`, or for APIs with tools
the response object as a dict (or the JSON text of it)."""

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
class EndedWhileThinking(ParseError):
    """The response ended inside its reasoning, so that it has no answer. `span` is the place of that reasoning."""


THINKING = (
    "the response ended while thinking, so nothing is carried out: raise max_tokens (the length of a response), ask "
    "for shorter thoughts, or check that the server's reasoning parser is the one of this model"
)

NO_ANSWER = (
    "the response holds reasoning and nothing after it, so nothing is carried out: write the action after the thought"
)


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A model's response, understood.

    Attributes:
        thought: all that is not an action: the reasoning, then the answer's text outside its actions.
        actions: the actions that could be read, in order. Where there are errors, carry out none of them: the response
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
    """Raised by readers inside a format when they give up. `parse` turns it into a `ParseError`."""

    def __init__(self, reason: str, span: tuple[int, int] | None = None) -> None:
        super().__init__(reason)
        self.span = span


class NoAnswerError(UnreadableError):
    """The response holds reasoning and nothing after it."""

    def __init__(self, reason: str, thought: str = "", span: tuple[int, int] | None = None) -> None:
        super().__init__(reason, span)
        self.thought = thought


class UnfinishedThoughtError(NoAnswerError):
    """The response ended inside its reasoning."""

    def __init__(self, thought: str = "", span: tuple[int, int] | None = None) -> None:
        super().__init__(THINKING, thought, span)


class InexpressibleError(ValueError):
    """The format has no spelling for an action. Raised by `format` only: a bug of the caller, not of a model."""


class ActionFormat(Protocol):
    """One module of `dart_agent.formats` per implementation. Pure: text and values in, values out."""

    name: str

    def space(self, screen: Screen) -> CoordinateSpace:
        """Relation of this format's numbers to the screen."""

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
    """Check that a response is a text and return it.

    Raises:
        UnreadableError: if it is not a text, too long, or not UTF-8.
    """
    text = response if isinstance(response, str) else _decoded(response)
    if len(text) > MAX_TEXT:
        raise UnreadableError(
            f"the response has {len(text)} characters, at most {MAX_TEXT} are read", (MAX_TEXT, len(text))
        )
    if half := half_pair(text):
        raise UnreadableError("the response holds half of a surrogate pair: it is no text", half)
    return text


def _decoded(response: Any) -> str:
    """The text of bytes, or of a chat message."""
    if isinstance(response, bytes):
        if len(response) > 4 * MAX_TEXT:
            raise UnreadableError(f"the response has {len(response)} bytes, at most {4 * MAX_TEXT} are read")
        try:
            return response.decode()
        except UnicodeDecodeError as error:
            raise UnreadableError(f"the response is not UTF-8: {error.reason} at byte {error.start}") from None
    if isinstance(response, Mapping) and not MESSAGE_FIELDS.isdisjoint(response):
        return message_text(response)
    raise UnreadableError(f"the response must be text, got {type(response).__name__}")


def answer_of(response: Response) -> Split:
    """The reasoning and the answer of a response that should be text.

    Raises:
        UnfinishedThoughtError: it ends inside its reasoning.
        NoAnswerError: nothing follows its reasoning.
        UnreadableError: it is no text, too long, or not UTF-8.
    """
    split = split_reasoning(text_of(response))
    if split.unfinished:
        raise UnfinishedThoughtError(split.reasoning, split.unfinished)
    if split.reasoning and not split.answer.strip():
        raise NoAnswerError(NO_ANSWER, split.reasoning)
    if len(split.answer) > MAX_RESPONSE:
        span = split.place((MAX_RESPONSE, len(split.answer)))
        raise UnreadableError(f"the answer has {len(split.answer)} characters, at most {MAX_RESPONSE} are read", span)
    return split


def parse_error(error: ValueError, span: tuple[int, int] = (0, 0)) -> ParseError:
    """The value of an exception; `span` is used where it has none of its own."""
    own = error.span if isinstance(error, UnreadableError) else None
    kind = EndedWhileThinking if isinstance(error, UnfinishedThoughtError) else ParseError
    reason = HALF_PAIR.sub("\N{REPLACEMENT CHARACTER}", words_of(error))
    return kind(reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 3] + "...", own or span)


def as_tuple(actions: Action | tuple[Action, ...]) -> tuple[Action, ...]:
    """One action or several, as several.

    Raises:
        InexpressibleError: if there is no action, or a chord names a key twice, which would be read as several presses.
    """
    given = (actions,) if isinstance(actions, Action) else tuple(actions)
    if not given:
        raise InexpressibleError("a response holds at least one action")
    for action in given:
        if isinstance(action, Press) and len(set(action.keys)) < len(action.keys):
            raise InexpressibleError(f"a chord names each key once: {'+'.join(action.keys)[:100]} does not")
    return given


_NOT_READ = Split("", "")


class Reading:
    """A response while it is being read: collects actions, and an error for what yields none.

    Spans of errors are places in the answer that `answer` gave; `result` turns them into places in the response.
    """

    def __init__(self, thought: str = "") -> None:
        self.thought = thought
        self.actions: list[Action] = []
        self.errors: list[ParseError] = []
        self._split = _NOT_READ

    def answer(self, response: Response) -> str:
        """The answer of a text response; its reasoning becomes a part of the thought. Raises as `answer_of`."""
        self._split = unwrapped(answer_of(response))
        return self._split.answer

    def fail(self, reason: str, span: tuple[int, int] = (0, 0)) -> None:
        """Note an error."""
        self.errors.append(parse_error(ValueError(reason), span))

    def give_up(self, error: ValueError) -> None:
        """Note an error that ends the reading; what was thought before it is kept."""
        if isinstance(error, NoAnswerError):
            self.thought = error.thought
        self.errors.append(parse_error(error))

    def result(self, nothing: str = "the response holds no action") -> ParsedResponse:
        """Return what was read; `nothing` is the reason where it is nothing at all."""
        if len(self.actions) > 4 * MAX_ACTIONS:
            self.fail(f"{len(self.actions)} actions in one response, at most {4 * MAX_ACTIONS} are read")
        if not self.actions and not self.errors:
            self.fail(nothing)
        split = self._split
        thought = (
            "\n".join(part for part in (split.reasoning, self.thought) if part) if split.reasoning else self.thought
        )
        errors = tuple(replace(error, span=split.place(error.span)) for error in self.errors)
        return ParsedResponse(thought, tuple(self.actions), errors)
