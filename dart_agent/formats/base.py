"""The protocol of an action format: parse what a model wrote, write what it should, describe it in the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dart_agent.coordinates import CoordinateSpace
from dart_gym.actions import Action


class ParseError(ValueError):
    """The text holds no valid action. The message is written for the model to read."""


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A model's response, understood. `actions` has at least one element."""

    thought: str
    actions: tuple[Action, ...]


class ActionFormat(Protocol):
    """One module of `dart_agent.formats` per implementation. Pure: text and values in, values out."""

    name: str

    def parse(self, text: str, space: CoordinateSpace) -> ParsedResponse:
        """Return thought and actions. Raises `ParseError`; never anything else, whatever the text."""

    def format(self, actions: tuple[Action, ...], space: CoordinateSpace, thought: str = "") -> str:
        """Write actions as the model would; `parse` returns them again (up to the space's rounding)."""

    def describe(self) -> str:
        """The action space as the prompt states it."""
