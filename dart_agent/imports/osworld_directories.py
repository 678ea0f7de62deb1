"""OSWorld's directories of results, our own exports of them included.

    <action_space>/<observation_type>/<model>/<domain>/<id>/{traj.jsonl, step_<n>_<time>.png, result.txt}

A directory at any depth of it may be named. Each model becomes an evaluation of its own, below the same directories.
Lines with one `step_num` are one decision (in our exports, with one `decision`). An example without `result.txt` was
not finished, and is refused. OSWorld does not write down what was asked: instructions come from the task's JSON
(`evaluation_examples`), in our exports from the first line.
"""

import json
import os
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.formats import get_format
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
    seed_field,
    text_field,
    with_actions,
)
from dart_gym.core.actions import Action, Done, Fail, Wait, action_from_dict
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.outcomes import TerminalState

LINES, RESULT = "traj.jsonl", "result.txt"
EVALUATOR = "osworld/result.txt"
MOST_JSON = 4 << 20
_TOOL, _SAID = "tool_use", "raw_response"
"""Of OSWorld's Claude agent: the type of an action whose code is beside the call of the tool, and what was written."""
_WORDS: dict[str, Action] = {"WAIT": Wait(2.0), "DONE": Done(), "FAIL": Fail()}


def find_results(source: Path, examples: Path | None = None) -> Iterator[Found]:
    """Yield the examples at or below a directory.

    Args:
        source: a directory of results, or a part of it.
        examples: OSWorld's `evaluation_examples`, for instructions.
    """
    for folder, folders, files in os.walk(source):
        folders.sort()
        if LINES in files:
            folders.clear()
            path = Path(folder)
            try:
                yield _example(path, source, examples)
            except (RefusedError, OSError) as error:
                yield Refused(str(path), str(error))


def _example(path: Path, source: Path, examples: Path | None) -> FoundEpisode:
    decisions = _decisions(path)
    known = decisions[0][1][0].get("episode", {})
    if not isinstance(known, dict):
        raise RefusedError("episode is no JSON object")
    full = path.resolve()
    domain, name = full.parent.name, full.name
    place = path.parent.parent
    task = _json(examples / "examples" / domain / f"{name}.json") if examples else {}
    seed = seed_field(known)
    score = _score(path / RESULT)
    steps, shot = [], _first_screenshot(path)
    for _, lines in decisions:
        steps.append((_step(lines, shot), shot))
        shot = [_screenshot(path, line) for line in lines][-1] or shot
    trajectory = Trajectory(
        task_id=text_field(known, "task_id", default=f"osworld/{name}"),
        seed=seed,
        instruction=text_field(known, "instruction", default=text_field(task, "instruction", default="")),
        source=text_field(known, "source", default="evaluation"),
        policy=text_field(known, "policy", default=full.parent.parent.name),
        app=text_field(known, "app", default=domain),
        terminal=_terminal(known),
        score=score,
        evaluator=text_field(known, "evaluator", default=EVALUATOR),
    )
    below = str(place.relative_to(source)) if place.is_relative_to(source) else ""
    return ended_episode(str(path), "" if below == "." else below, trajectory, steps, shot)


def _decisions(path: Path) -> list[tuple[Any, list[dict[str, Any]]]]:
    """Group the lines of a file by decision.

    Raises:
        RefusedError: if a line is malformed, or there are no lines or too many.
    """
    lines: list[dict[str, Any]] = []
    for number, line in json_lines(path / LINES):
        if isinstance(line, RefusedError):
            raise RefusedError(f"line {number} of {LINES}: {line}")
        if "Error" in line or "action" not in line:
            why = line.get("Error", "it has no action")
            raise RefusedError(f"line {number} of {LINES}: {why!s:.200}")
        if len(lines) == MOST_STEPS:
            raise RefusedError(f"{LINES} has more than {MOST_STEPS} lines")
        lines.append({"line": number, **line})
    if not lines:
        raise RefusedError(f"{LINES} is empty")
    return [
        (key, list(group)) for key, group in groupby(lines, lambda line: line.get("decision", line.get("step_num")))
    ]


def _step(lines: list[dict[str, Any]], shot: Path | None) -> Step:
    response = lines[0].get("response", "")
    text = response if isinstance(response, str) else json.dumps(response)
    screen = image_size(shot) if shot else (0, 0)
    actions: list[Action] = []
    for line in lines:
        try:
            actions += _actions(line["action"], screen)
        except (RefusedError, ValueError) as error:
            raise RefusedError(f"line {line['line']} of {LINES}: {error}") from error
    failed = _error(lines)
    said = text.encode("utf-8", "replace").decode()
    # What failed where something was done is an action, else the policy.
    step = Step(text=said, action_error=failed) if actions else Step(text=said, error=failed)
    try:
        return with_actions(step, tuple(actions), screen if shot else None)
    except RefusedError as error:
        raise RefusedError(f"line {lines[0]['line']} of {LINES}: {error}") from error


def _terminal(known: dict[str, Any]) -> TerminalState:
    """Return how an episode of ours ended; another one that did not end itself has used up its steps."""
    try:
        return TerminalState(known.get("terminal", TerminalState.STEP_LIMIT))
    except ValueError as error:
        raise RefusedError(f"its episode has no terminal state that is known: {error}") from error


def _error(lines: list[dict[str, Any]]) -> str:
    """Return what a decision of ours failed with; "" where it did not."""
    info = lines[0].get("info")
    error = info.get("error") if isinstance(info, dict) else None
    return error if isinstance(error, str) else ""


def _actions(action: Any, screen: tuple[int, int]) -> tuple[Action, ...]:
    """The actions of one line: a typed one, `computer_13`'s, a word, or pyautogui's code."""
    size = screen if min(screen) > 0 else (1920, 1080)
    if isinstance(action, Mapping):
        if action.get("kind") in ("none", *TerminalState):
            ends = {"done": (Done(),), "fail": (Fail(),)}
            return (action_from_dict(dict(action)),) if len(action) > 1 else ends.get(action["kind"], ())
        if "kind" in action:
            return (action_from_dict(dict(action)),)
        if action.get("action_type", _TOOL) != _TOOL:
            said = {name: value for name, value in action.items() if name != _SAID}
            return read_actions(get_format("computer_13"), said, size)
        action = action.get("command", action.get("action"))
    if not isinstance(action, str):
        raise RefusedError(f"its action is neither code nor an object that is known: {action!r:.100}")
    if not (word := action.strip()):  # a tool that only looks, such as one that takes a screenshot
        return ()
    if word in _WORDS:
        return (_WORDS[word],)
    try:
        code = get_format("pyautogui")
    except ConfigurationError as error:
        raise RefusedError(str(error)) from error
    return read_actions(code, f"```python\n{action}\n```", size)


def _screenshot(path: Path, line: dict[str, Any]) -> Path | None:
    """Return the file that shows the result of a line; None if the line names no file."""
    name = line.get("screenshot_file")
    if not isinstance(name, str):
        name = f"step_{line.get('step_num')}_{line.get('action_timestamp')}.png"
    return image_below(path, name) if name else None


def _first_screenshot(path: Path) -> Path | None:
    """Return what was to be seen at first, which OSWorld does not always keep."""
    names = sorted(found.name for found in path.glob("step_0*.png"))
    return image_below(path, names[0]) if names else None


def _score(path: Path) -> float:
    try:
        score = float(path.read_text(encoding="utf-8")[:100])
    except FileNotFoundError:
        raise RefusedError(f"it has no {RESULT}: it was not finished") from None
    except ValueError as error:
        raise RefusedError(f"{RESULT} holds no number") from error
    if not 0.0 <= score <= 1.0:
        raise RefusedError(f"{RESULT} holds {score}, which is no score in [0, 1]")
    return score


def _json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(MOST_JSON))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError(f"{path.name} is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise RefusedError(f"{path.name} is no JSON object")
    return value
