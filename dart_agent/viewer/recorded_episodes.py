"""Episodes from wherever they were recorded: by `dart-agent`, or by a trainer's rollouts.

A trainer's trajectory is `trajectories/<id>/trajectory.msgpack` beside `images/<first two digits>/<hash>.png`, a map of
its fields with a list of steps. Only what the viewer and the exports show is read; unknown fields are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack

from dart_agent.episodes.records import EpisodeRecord, RecordError, StepRecord, find_episodes, read_episode
from dart_agent.models.model_directory import Decoder
from dart_gym.core.errors import TaskError
from dart_gym.tasks.catalog import registry

TRAJECTORY = "trajectory.msgpack"
_NAMED = 5


def read_recorded(directory: Path, decode: Decoder | None = None) -> EpisodeRecord:
    """The one episode that lies in a directory, or alone below it.

    Args:
        directory: of an episode, or of a trainer's trajectory.
        decode: of the model's tokenizer, for records that hold ids only.

    Raises:
        RecordError: there is none, there are several, or it is damaged.
    """
    if (directory / TRAJECTORY).exists():
        record = read_trajectory(directory)
    elif (directory / "episode.json").exists():
        record = read_episode(directory)
    else:
        record = read_recorded(_only_one(directory), decode)
    return decoded(record, decode) if decode else record


def read_trajectory(directory: Path) -> EpisodeRecord:
    """A trainer's trajectory.

    Raises:
        RecordError: missing or damaged.
    """
    path = directory / TRAJECTORY
    try:
        fields = msgpack.unpackb(path.read_bytes())
        size = _screen_size(str(fields["task_id"]))
        source = str(fields.get("source", "rollout"))
        actor = source if source in ("oracle", "human") else "policy"
        return EpisodeRecord(
            task_id=str(fields["task_id"]),
            seed=int(fields["seed"]),
            instruction=str(fields["instruction"]),
            terminal=str(fields["terminal"]),
            score=fields["reward"],
            task_hash=str(fields.get("task_hash", "")),
            timings=dict(fields.get("timings", {})),
            policy=source,
            ended_at=float(fields.get("created_at", 0.0)),
            steps=sum(len(step["actions"]) for step in fields["steps"]),
            decisions=tuple(_step(step, size, actor) for step in fields["steps"]),
            directory=directory,
        )
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, msgpack.UnpackException) as error:
        raise RecordError(f"cannot read {path}: {type(error).__name__}: {error}") from error


def decoded(record: EpisodeRecord, decode: Decoder) -> EpisodeRecord:
    """The record with the text of every token, where it was recorded without. Pure."""
    steps = tuple(
        replace(step, tokens=tuple(decode(step.response_ids))) if step.response_ids and not step.tokens else step
        for step in record.decisions
    )
    return replace(record, decisions=steps)


def _step(fields: Mapping[str, Any], size: tuple[int, int], actor: str) -> StepRecord:
    images = fields["image_hashes"]
    return StepRecord(
        screenshot=f"../../images/{images[-1][:2]}/{images[-1]}.png" if images else "",
        screen=size,
        text=str(fields.get("text", "")),
        thought=str(fields.get("thought", "")),
        actions=tuple(fields["actions"]),
        action_error=str(fields.get("action_error", "")),
        actor=actor,
        timings=dict(fields.get("timings", {})),
        prompt_tokens=len(fields["prompt_ids"]),
        prompt_images=len(images),
        response_ids=tuple(fields["response_ids"]),
        logprobs=tuple(fields.get("logprobs", ())),
        version=(int(fields["version"][0]), int(fields["version"][1])),
        engine=str(fields.get("engine", "")),
    )


def _screen_size(task_id: str) -> tuple[int, int]:
    """(width, height) of the screen that the task is played on; (0, 0) for a task that is not known here."""
    try:
        desktop = registry.get_task(task_id).desktop
    except TaskError:
        return 0, 0
    return desktop.width, desktop.height


def _only_one(directory: Path) -> Path:
    found = [*find_episodes(directory, partial=True), *sorted(path.parent for path in directory.rglob(TRAJECTORY))]
    if not found:
        raise RecordError(f"{directory} holds no recorded episode: play one with dart-agent run --out, or eval --out")
    if len(found) > 1:
        names = "\n".join(f"  {path}" for path in found[:_NAMED])
        more = f"\n  ... and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise RecordError(f"{directory} holds {len(found)} episodes, name one of them:\n{names}{more}")
    return found[0]
