"""Our own exports of chat JSONL, read back: `metadata.jsonl` beside its images, or `train.jsonl` with images in it."""

import base64
import binascii
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.imports.found_episodes import (
    MOST_STEPS,
    Found,
    FoundEpisode,
    Refused,
    RefusedError,
    ended_episode,
    image_below,
    image_size,
    json_lines,
    score_field,
    seed_field,
    text_field,
    with_actions,
)
from dart_gym.core.actions import action_from_dict
from dart_gym.core.outcomes import TerminalState

EVALUATOR = "chat/score"
_URL = "data:image/png;base64,"


def find_chats(path: Path) -> Iterator[Found]:
    """Yield the episodes of a JSONL file."""
    for number, line in json_lines(path):
        where = f"line {number} of {path.name}"
        try:
            if isinstance(line, RefusedError):
                raise line
            yield _episode(line, where, path.parent)
        except (ValueError, TypeError, KeyError, LookupError, AttributeError) as error:
            yield Refused(
                where, str(error) if isinstance(error, RefusedError) else f"it is no row of ours ({error!r:.100})"
            )


def _episode(line: dict[str, Any], where: str, root: Path) -> FoundEpisode:
    messages, actions = line["messages"], line["actions"]
    images = line.get("images") or line["images_file_names"]
    score, seed = score_field(line), seed_field(line)
    if not len(messages) == 2 * len(actions) == 2 * len(images) <= 2 * MOST_STEPS or not messages:
        raise RefusedError("messages, actions and images differ in number")
    steps = []
    for index, (image, written) in enumerate(zip(images, actions, strict=True)):
        shot = _inline(image) if image.startswith("data:") else image_below(root, image)
        screen = image_size(shot)
        typed = tuple(action_from_dict(action) for action in json.loads(written))
        text = text_field(messages[2 * index + 1]["content"][0], "text", default="")
        try:
            steps.append((with_actions(Step(text=text), typed, screen), shot))
        except RefusedError as error:
            raise RefusedError(f"step {index}: {error}") from error
    trajectory = Trajectory(
        task_id=text_field(line, "task_id"),
        seed=seed,
        instruction=text_field(messages[0]["content"][0], "text"),
        source=text_field(line, "source", default="evaluation"),
        policy=text_field(line, "policy", default=""),
        app=text_field(line, "app", default=""),
        terminal=TerminalState(line.get("terminal", TerminalState.DONE)),
        score=score,
        evaluator=EVALUATOR,
    )
    return ended_episode(where, "", trajectory, steps, members=True)


def _inline(url: str) -> bytes:
    try:
        if not url.startswith(_URL):
            raise RefusedError(f"an image begins with {url[:40]!r}, not with {_URL!r}")
        return base64.b64decode(url[len(_URL) :], validate=True)
    except binascii.Error as error:
        raise RefusedError(f"an image is no base64 ({error})") from error
