"""Actions on elements that are described in words, and how they get coordinates.

A planner says "click the Save button" and a grounder says where that is. `parse` of such a format gives `Ungrounded`
actions, which no desktop takes; `ground` asks for every description once and returns the response with plain actions.

    parsed = formats.get_format("agent_s").parse(text, screen)
    parsed = await ground(parsed, grounder, screenshot)     # what is not found becomes an error
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dart_agent.formats.grammar.action_format import ParsedResponse, ParseError
from dart_agent.formats.grammar.pointer import holding
from dart_gym.core import actions as a

Point = tuple[int, int]


class Locator(Protocol):
    """The part of a grounder that `ground` needs."""

    async def locate(self, description: str, screenshot: Any, k: int = 1) -> Sequence[Any]:
        """At most k places of an element, `x` and `y` in pixels of the real screen, the likeliest first; or none."""


@dataclass(frozen=True, slots=True)
class Ungrounded(a.Action, ABC):
    """An action on elements that are described in words."""

    @property
    @abstractmethod
    def targets(self) -> tuple[str, ...]:
        """The descriptions, in the order in which `grounded` wants their places."""

    @abstractmethod
    def grounded(self, *places: Point) -> list[a.Action]:
        """The plain actions, with a place for each target."""


@dataclass(frozen=True, slots=True)
class ClickOn(Ungrounded):
    """Click on an element."""

    element: str
    count: int = 1
    button: a.Button = "left"
    modifiers: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """The element."""
        return (self.element,)

    def grounded(self, *places: Point) -> list[a.Action]:
        """One click."""
        return [a.Click(*places[0], self.button, self.count, self.modifiers)]


@dataclass(frozen=True, slots=True)
class TypeInto(Ungrounded):
    """Click on an element and type; `overwrite` selects and deletes what is there, `enter` presses Enter at last."""

    element: str
    text: str
    overwrite: bool = False
    enter: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        """The element."""
        return (self.element,)

    def grounded(self, *places: Point) -> list[a.Action]:
        """A click and the typing."""
        return [a.Click(*places[0]), *typing(self.text, self.overwrite, self.enter)]


@dataclass(frozen=True, slots=True)
class DragOn(Ungrounded):
    """Drag from one element to another, with keys held."""

    start: str
    end: str
    modifiers: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """Start and end."""
        return (self.start, self.end)

    def grounded(self, *places: Point) -> list[a.Action]:
        """A drag between the keys."""
        return holding(self.modifiers, [a.Drag((places[0], places[1]))])


@dataclass(frozen=True, slots=True)
class ScrollOn(Ungrounded):
    """Turn the wheel over an element: `dy` notches down, `dx` to the right."""

    element: str
    dx: int = 0
    dy: int = 0

    @property
    def targets(self) -> tuple[str, ...]:
        """The element."""
        return (self.element,)

    def grounded(self, *places: Point) -> list[a.Action]:
        """One turn."""
        return [a.Scroll(*places[0], self.dx, self.dy)]


def typing(text: str, overwrite: bool, enter: bool) -> list[a.Action]:
    """Typing where the focus is."""
    cleared: list[a.Action] = [a.Press(("ctrl", "a")), a.Press(("backspace",))] if overwrite else []
    return [*cleared, a.Type(text), *([a.Press(("enter",))] if enter else [])]


def visiting(url: str) -> list[a.Action]:
    """Going to an address as a person does in any browser that has the focus."""
    return [a.Press(("ctrl", "l")), *typing(url, False, True)]


def targets(parsed: ParsedResponse) -> list[str]:
    """The descriptions in a response, each once, in order."""
    found = (target for action in parsed.actions if isinstance(action, Ungrounded) for target in action.targets)
    return list(dict.fromkeys(found))


def with_places(parsed: ParsedResponse, places: dict[str, Point | None]) -> ParsedResponse:
    """A response with plain actions; an error for each description without a place. Pure."""
    missing = [target for target in targets(parsed) if places.get(target) is None]
    if missing:
        errors = [ParseError(f"there is no element {target[:120]!r} on the screen") for target in missing]
        return replace(parsed, actions=(), errors=(*parsed.errors, *errors))
    actions: list[a.Action] = []
    for action in parsed.actions:
        if isinstance(action, Ungrounded):
            actions += action.grounded(*(place for target in action.targets if (place := places[target])))
        else:
            actions.append(action)
    return replace(parsed, actions=tuple(actions))


async def ground(parsed: ParsedResponse, grounder: Locator, screenshot: Any) -> ParsedResponse:
    """Ask a grounder for the place of every description in a response; no question where there is an error already."""
    if parsed.errors:
        return parsed
    places: dict[str, Point | None] = {}
    for target in targets(parsed):
        found = await grounder.locate(target, screenshot)
        places[target] = (found[0].x, found[0].y) if found else None
    return with_places(parsed, places)
