"""Results of an importer: episodes to record, and items that cannot become one, with the reason.

Nothing in a data set of others is trusted. A line is read up to a length, a path leads nowhere but below the data set,
an image is opened before its episode counts, and an action that points off its screenshot is refused.
"""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import PIL.Image

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.formats import ActionFormat, Screen
from dart_gym.core.actions import Action, action_to_dict
from dart_gym.core.outcomes import TerminalState

LONGEST_LINE = 32 << 20
MOST_STEPS = 10_000
HIGHEST_SEED = 2**63 - 1


class RefusedError(ValueError):
    """Why something cannot be imported, in words."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An item that is not imported, and the reason."""

    where: str
    why: str


@dataclass(frozen=True, slots=True)
class FoundEpisode:
    """An episode of others.

    Attributes:
        where: how messages name it.
        place: directory below the one that is imported into; "" for that one.
        trajectory: the record, without steps.
        steps: each decision with the file of the screenshot before it, or None.
        after: the file of the last screenshot, or None.
        members: whether its source may hold several episodes of one task and seed, as the members of a group.
    """

    where: str
    place: str
    trajectory: Trajectory
    steps: tuple[tuple[Step, Path | bytes | None], ...]
    after: Path | bytes | None = None
    members: bool = False


Found = FoundEpisode | Refused


def ended_episode(
    where: str,
    place: str,
    trajectory: Trajectory,
    steps: Sequence[tuple[Step, Path | bytes | None]],
    after: Path | bytes | None = None,
    *,
    members: bool = False,
) -> FoundEpisode:
    """Return an episode that has ended, by the last "done" or "fail" of its actions, else as `trajectory` says."""
    kinds = [action["kind"] for step, _ in steps for action in step.actions]
    ends = [TerminalState(kind) for kind in kinds if kind in (TerminalState.DONE, TerminalState.FAIL)]
    terminal = ends[-1] if ends else trajectory.terminal
    status = "" if trajectory.lost_by else "ok"
    ended = replace(trajectory, terminal=terminal, status=status, num_actions=len(kinds))
    return FoundEpisode(where, place, ended, tuple(steps), after, members)


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | RefusedError]]:
    """Yield the objects of a JSONL file with their line numbers, one at a time; an error for a malformed line."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
                yield number, RefusedError(f"it has more than {LONGEST_LINE} bytes")
            elif line.strip():
                yield number, _json_object(line)


def _json_object(line: bytes) -> dict[str, Any] | RefusedError:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return RefusedError(f"it is no JSON ({error})")
    return value if isinstance(value, dict) else RefusedError("it is no JSON object")


def text_field(values: dict[str, Any], name: str, *, default: str | None = None) -> str:
    """Return a text of an object.

    Raises:
        RefusedError: if the field is missing or not a text.
    """
    value = values.get(name, default)
    if not isinstance(value, str) or (default is None and not value):
        raise RefusedError(f"{name} is missing" if name not in values else f"{name} is no text: {value!r:.60}")
    return value.encode("utf-8", "replace").decode()


def seed_field(values: dict[str, Any]) -> int:
    """Return the seed of an object, 0 where it has none.

    Raises:
        RefusedError: if the seed is not an integer that a record can hold.
    """
    seed = values.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not -HIGHEST_SEED <= seed <= HIGHEST_SEED:
        raise RefusedError(f"seed is {seed!r:.60}, which is no integer of 64 bits")
    return seed


def score_field(values: dict[str, Any]) -> float:
    """Return the score of an object.

    Raises:
        RefusedError: if the score is not a number in [0, 1].
    """
    score = values.get("score")
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1:
        raise RefusedError(f"score is {score!r:.60}, which is not in [0, 1]")
    return float(score)


def image_below(root: Path, name: str) -> Path:
    """Return the file of an image.

    Raises:
        RefusedError: if there is no such file, or it lies outside of `root`.
    """
    path = root / name
    try:
        outside = Path(name).is_absolute() or not path.resolve().is_relative_to(root.resolve())
        missing = not path.is_file()
    except (OSError, ValueError) as error:  # too long, or with characters that no name has
        raise RefusedError(f"the image {name[:100]!r} is no name of a file ({type(error).__name__})") from error
    if outside:
        raise RefusedError(f"the image {name[:100]!r} lies outside of the data set")
    if missing:
        raise RefusedError(f"the image {name[:100]!r} is missing")
    return path


def image_size(image: Path | bytes) -> tuple[int, int]:
    """Return (width, height) of an image.

    Raises:
        RefusedError: if the image is damaged, or neither PNG nor WebP.
    """
    try:
        with PIL.Image.open(
            io.BytesIO(image) if isinstance(image, bytes) else image, formats=("PNG", "WEBP")
        ) as picture:
            return picture.size
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        name = "in the line" if isinstance(image, bytes) else image.name
        raise RefusedError(f"the image {name} cannot be read ({error})") from error


def read_actions(action_format: ActionFormat, text: Any, screen: Screen) -> tuple[Action, ...]:
    """Return the actions of a text.

    Raises:
        RefusedError: if the text holds something that is not an action.
    """
    parsed = action_format.parse(text, screen)
    if parsed.errors:
        raise RefusedError(f"its action cannot be read: {parsed.problem}")
    return parsed.actions


def with_actions(step: Step, actions: tuple[Action, ...], screen: tuple[int, int] | None) -> Step:
    """Return a step with actions on a screen, which is None where its screenshot was not kept.

    Raises:
        RefusedError: if an action points off the screen.
    """
    for action in actions if screen is not None else ():
        points = list(getattr(action, "path", ()))
        if (x := getattr(action, "x", None)) is not None:
            points.append((x, action.y))  # type: ignore[attr-defined]  # they are given together
        for across, down in points:
            if screen is not None and not (0 <= across < screen[0] and 0 <= down < screen[1]):
                raise RefusedError(f"it points at ({across}, {down}), off its screen of {screen[0]}x{screen[1]}")
    return replace(step, actions=tuple(map(action_to_dict, actions)), screen=screen or (0, 0))
