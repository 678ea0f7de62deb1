"""What the formats of APIs with tools share: the response object, and how a task is declared infeasible in words."""

import json
from collections.abc import Mapping
from typing import Any

from dart_agent.formats.grammar.action_format import (
    HALF_PAIR,
    InexpressibleError,
    Response,
    UnreadableError,
    answer_of,
    text_of,
)
from dart_agent.formats.grammar.fields import read_json
from dart_gym.core import actions as a

INFEASIBLE = "[INFEASIBLE]"
"""These APIs have no action for the end: a turn without one is the answer, and the answer of a task that cannot be
accomplished starts with this word, as OSWorld's agents ask for."""

ENDING = f"""Use the computer. When the task is accomplished, answer in words without a tool call. \
If it cannot be accomplished, answer with "{INFEASIBLE}" and the reason."""


def response_object(response: Response) -> Mapping[str, Any]:
    """The response object of an API, given as it is or as JSON text. Raises `UnreadableError`."""
    if isinstance(response, Mapping):
        return response
    text = text_of(response)
    found = read_json(text, (0, len(text)))
    if not isinstance(found, dict):
        raise UnreadableError(f"a response is a JSON object, got a {type(found).__name__}", (0, len(text)))
    return found


def blocks(value: Any, what: str, limit: int = 256) -> list[Mapping[str, Any]]:
    """A list of objects. Raises `UnreadableError`."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, Mapping) for item in value):
        raise UnreadableError(f"{what} must be a list of objects")
    if len(value) > limit:
        raise UnreadableError(f"{what} has {len(value)} entries, at most {limit} are read")
    return list(value)


def words(value: Any) -> str:
    """A text, "" for anything else: answers and thoughts never make a response unreadable."""
    return HALF_PAIR.sub("\N{REPLACEMENT CHARACTER}", value) if isinstance(value, str) else ""


def ending(text: str) -> a.Action:
    """What a turn without actions means: its answer, without what was thought in tags.

    Raises:
        UnfinishedThoughtError: the text ends inside a thought.
        ValueError: an endless text.
    """
    text = answer_of(text).answer.strip()
    return a.Fail(text.removeprefix(INFEASIBLE).strip()) if text.startswith(INFEASIBLE) else a.Done(text)


def ending_text(action: a.Done | a.Fail) -> str:
    """The text that `ending` reads back. Raises `InexpressibleError` where there is none."""
    text = action.answer if isinstance(action, a.Done) else f"{INFEASIBLE} {action.reason}".rstrip()
    if ending(text) != action:
        raise InexpressibleError(f"as an answer {text[:60]!r} would be read otherwise")
    return text


def dump(response: Mapping[str, Any]) -> str:
    """JSON as `response_object` reads it."""
    return json.dumps(response, ensure_ascii=False)
