"""Data sets in AgentNet's layout: JSONL with a task per line, and a directory of screenshots.

    {"task_id", "instruction", "task_completed", "traj": [{"index", "image", "value": {"thought", "action", "code"}}]}

Coordinates in the code are fractions of the screenshot. A completed task has the score 1, another one 0; a line that
does not say so is refused. Images are looked for beside the file and in the directories beside it, two levels deep, as
the archives of the data set unpack.

The published files hold some tasks several times, done by other people on other screens. The seed of an episode is a
checksum of its first image's name, so that each of them is an episode of its own, and the same one wherever it stands.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.formats import ActionFormat, get_format
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
    read_actions,
    text_field,
    with_actions,
)
from dart_gym.core.outcomes import TerminalState

EVALUATOR = "agentnet/task_completed"


def find_agentnet(path: Path) -> Iterator[Found]:
    """Yield the episodes of a JSONL file.

    Raises:
        ConfigurationError: if the package with OpenCUA's format is missing.
    """
    code = get_format("opencua:relative")
    folders = [path.parent, *_directories(path.parent, 2)]
    for number, line in json_lines(path):
        where = f"line {number} of {path.name}"
        try:
            if isinstance(line, RefusedError):
                raise line
            yield _episode(line, where, folders, code)
        except RefusedError as error:
            yield Refused(where, str(error))


def _directories(place: Path, levels: int) -> list[Path]:
    """Return the directories below a place, those of the first level before what they hold."""
    found = sorted(one for one in place.iterdir() if one.is_dir())
    return found if levels == 1 else found + [below for one in found for below in _directories(one, levels - 1)]


def _episode(line: dict[str, Any], where: str, folders: list[Path], code: ActionFormat) -> FoundEpisode:
    name, instruction = text_field(line, "task_id"), text_field(line, "instruction")
    completed, entries = line.get("task_completed"), line.get("traj")
    if not isinstance(completed, bool):
        raise RefusedError("task_completed is neither true nor false")
    if not isinstance(entries, list) or not 0 < len(entries) <= MOST_STEPS:
        raise RefusedError(f"traj is no list of 1 to {MOST_STEPS} steps")
    steps = []
    for index, entry in enumerate(entries):
        try:
            steps.append(_step(entry, folders, code))
        except RefusedError as error:
            raise RefusedError(f"step {index}: {error}") from error
    trajectory = Trajectory(
        task_id=f"agentnet/{name}",
        seed=zlib.crc32(steps[0][1].name.encode("utf-8", "surrogateescape")),
        instruction=instruction,
        source="human",
        policy="human",
        app="agentnet",
        terminal=TerminalState.DONE,
        score=float(completed),
        evaluator=EVALUATOR,
    )
    return ended_episode(where, "", trajectory, steps)


def _step(entry: Any, folders: list[Path], code: ActionFormat) -> tuple[Step, Path]:
    value = entry.get("value") if isinstance(entry, dict) else None
    if not isinstance(value, dict):
        raise RefusedError("it has no value")
    shot = _image(folders, text_field(entry, "image"))
    screen = image_size(shot)
    said = {name: text_field(value, name, default="") for name in ("thought", "action", "code")}
    source = f"## Code:\n```python\n{said['code']}\n```"
    actions = read_actions(code, source, screen)
    head = "".join(f"## {name.title()}:\n{said[name]}\n\n" for name in ("thought", "action") if said[name])
    step = Step(text=head + source, thought=said["thought"], actor="human")
    return with_actions(step, actions, screen), shot


def _image(folders: list[Path], name: str) -> Path:
    fault: RefusedError | None = None
    for folder in folders:
        try:
            return image_below(folder, name)
        except RefusedError as error:
            fault = error if fault is None or str(fault).endswith("is missing") else fault
    raise fault or RefusedError(f"the image {name[:100]!r} is missing")
