"""Episodes on disk: written step by step while they are played, read by the viewer, the exports and the statistics.

One directory per episode:
    episode.json            what was played and how it ended
    steps.jsonl             one line per decision: texts, actions, token ids with log-probabilities, timings
    screenshots/000.png     what was seen before decision 0, 1, ...
    screenshots/final.png   what was to be seen at the end

Invariants:
    - An episode is written below a name that ends in ".partial" and renamed when it is complete. What has its final
      name is complete; what a killed process left is readable up to its last whole line.
    - Everything is JSON and PNG. Numbers that JSON lacks are null; text of any kind, lone surrogates too, is kept.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_agent.episodes.play import PlayedEpisode, PlayedStep
from dart_agent.models.model_directory import Decoder
from dart_gym.core.actions import action_to_dict
from dart_gym.core.errors import DartGymError

FORMAT = 1
PARTIAL = ".partial"
CUT_OFF = "cut_off"
"""The terminal state of a record whose writer was killed."""


class RecordError(DartGymError):
    """A recorded episode cannot be read or written; the message names the file."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One decision.

    Attributes:
        screenshot: file of what was seen, relative to the episode's directory; "" where none was kept.
        screen: (width, height) of the real screen, in whose pixels `actions` are.
        text: what the model wrote.
        thought: the part of it that is not the action.
        actions: as dicts (`dart_gym.core.actions.action_to_dict`).
        error: why nothing could be parsed or answered.
        terminal: the state by which the policy ended the episode; "" if it did not.
        action_error: what the environment said about the actions.
        actor: who decided: "policy", "oracle", "human".
        timings: seconds by phase.
        prompt_tokens: length of the prompt; 0 without a model.
        prompt_images: screenshots in the prompt.
        response_ids: sampled ids.
        tokens: the text of each; empty where no tokenizer was at hand.
        logprobs: natural log-probability of each id; None for one that was not a number.
        version: (oldest, newest) version of the weights.
        engine: which replica answered.
        finish_reason: "stop" or "length".
    """

    screenshot: str = ""
    screen: tuple[int, int] = (0, 0)
    text: str = ""
    thought: str = ""
    actions: tuple[dict[str, Any], ...] = ()
    error: str = ""
    terminal: str = ""
    action_error: str = ""
    actor: str = "policy"
    timings: dict[str, float] = field(default_factory=dict)
    prompt_tokens: int = 0
    prompt_images: int = 0
    response_ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    version: tuple[int, int] = (0, 0)
    engine: str = ""
    finish_reason: str = ""


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One recorded episode.

    Attributes:
        task_id: what was played.
        seed: of the initial state.
        instruction: as the policy saw it.
        terminal: how it ended (a `TerminalState`), or "cut_off" where its writer was killed.
        score: in [0, 1]; None where there is none.
        status: of the evaluation (`EvaluationStatus`).
        evaluator: name and version of what computed the score.
        detail: what it says about a failure or a low score.
        lost_by: "engine", "environment" or "evaluation" where it says nothing about the policy.
        steps: actions carried out.
        error: what the policy could not parse or answer last.
        timings: seconds by phase.
        task_hash: content hash of the task's definition.
        app: application, or suite where the task names none.
        policy: as it was named on the command line.
        attempts: how often it was played until it counted.
        ended_at: Unix time.
        decisions: the steps, as `read_episode` finds them; not part of episode.json.
        final_screenshot: like those of the decisions.
        directory: where it lies.
    """

    task_id: str
    seed: int
    instruction: str
    terminal: str
    score: float | None = None
    status: str = ""
    evaluator: str = ""
    detail: str = ""
    lost_by: str = ""
    steps: int = 0
    error: str = ""
    timings: dict[str, float] = field(default_factory=dict)
    task_hash: str = ""
    app: str = ""
    policy: str = ""
    attempts: int = 1
    ended_at: float = 0.0
    decisions: tuple[StepRecord, ...] = ()
    final_screenshot: str = ""
    directory: Path = Path()

    @property
    def success(self) -> bool:
        """Whether the task was accomplished."""
        return self.score is not None and self.score >= 1.0


_NOT_STORED = ("decisions", "directory")
_STEP_FIELDS = {item.name for item in fields(StepRecord)}
_EPISODE_FIELDS = {item.name for item in fields(EpisodeRecord)} - set(_NOT_STORED)
_STEP_TUPLES = ("screen", "actions", "response_ids", "tokens", "logprobs", "version")


def make_record(episode: PlayedEpisode, **more: Any) -> EpisodeRecord:
    """The record of a played episode. Pure.

    Args:
        episode: how it went.
        more: other fields of `EpisodeRecord`, such as `app`, `policy`, `attempts`.
    """
    return EpisodeRecord(
        task_id=episode.task_id,
        seed=episode.seed,
        instruction=episode.instruction,
        terminal=str(episode.terminal),
        score=episode.score,
        status=str(episode.evaluation.status),
        evaluator=episode.evaluation.evaluator,
        detail=episode.evaluation.detail,
        lost_by=episode.lost_by,
        steps=episode.steps,
        error=episode.error,
        timings=episode.timings,
        task_hash=episode.task_hash,
        ended_at=episode.ended_at,
        **more,
    )


def make_step(step: PlayedStep, screenshot: str, decode: Decoder | None = None) -> StepRecord:
    """The record of one decision. Pure."""
    decision, generation = step.decision, step.decision.generation
    height, width = step.observation.screenshot.shape[:2]
    record = StepRecord(
        screenshot=screenshot,
        screen=(width, height),
        text=decision.text,
        thought=decision.thought,
        actions=tuple(action_to_dict(action) for action in decision.actions),
        error=decision.error,
        terminal=str(decision.terminal or ""),
        action_error=step.result.observation.action_error,
        actor=decision.actor,
        timings=step.timings,
    )
    if decision.prompt is not None:
        record = replace(
            record, prompt_tokens=len(decision.prompt.token_ids), prompt_images=len(decision.prompt.images)
        )
    if generation is None:
        return record
    return replace(
        record,
        response_ids=generation.response_ids,
        tokens=tuple(decode(generation.response_ids)) if decode else (),
        logprobs=tuple(value if math.isfinite(value) else None for value in generation.logprobs),
        version=generation.version,
        engine=generation.engine,
        finish_reason=generation.finish_reason,
    )


class EpisodeWriter:
    """Writes one episode while it is played. Use as a context manager.

        with EpisodeWriter(directory, task_id, seed) as writer:
            episode = await play_episode(session, policy, task_id, seed=seed, on_step=writer.step)
            writer.finish(make_record(episode))

    Without `finish` (a killed process, an error) the directory keeps its partial name.

    Args:
        directory: final name; what lies there is replaced.
        task_id: see `EpisodeRecord`.
        seed: see there.
        decode: of the model's tokenizer, so that the viewer can show tokens.

    Raises:
        RecordError: the directory cannot be written.
    """

    def __init__(self, directory: Path, task_id: str, seed: int, decode: Decoder | None = None) -> None:
        self._directory, self._partial = directory, directory.with_name(directory.name + PARTIAL)
        self._begun = EpisodeRecord(task_id, seed, "", CUT_OFF)
        self._decode = decode
        self._count = 0

    def __enter__(self) -> EpisodeWriter:
        with explained(self._partial):
            if self._partial.exists():
                shutil.rmtree(self._partial)
            (self._partial / "screenshots").mkdir(parents=True)
            replace_json(self._partial / "episode.json", _episode_fields(self._begun))
            self._steps = (self._partial / "steps.jsonl").open("a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._steps.close()

    def step(self, step: PlayedStep) -> None:
        """Write a decision and what was seen before it."""
        name = f"screenshots/{self._count:03d}.png"
        record = make_step(step, name, self._decode)
        with explained(self._partial):
            if self._count == 0:
                self._begun = replace(self._begun, instruction=step.observation.instruction)
                replace_json(self._partial / "episode.json", _episode_fields(self._begun))
            _write_png(self._partial / name, step.observation.screenshot)
            self._steps.write(_dumps(asdict(record)) + "\n")
            self._steps.flush()
            if step.result.terminal is not None and step.result.observation.screenshot is not None:
                _write_png(self._partial / "screenshots/final.png", step.result.observation.screenshot)
        self._count += 1

    def finish(self, record: EpisodeRecord) -> EpisodeRecord:
        """Complete the episode under its final name; return the record with its directory."""
        final = "screenshots/final.png"
        if (self._partial / final).exists():
            record = replace(record, final_screenshot=final)
        with explained(self._directory):
            replace_json(self._partial / "episode.json", _episode_fields(record))
            if self._directory.exists():
                shutil.rmtree(self._directory)
            self._partial.rename(self._directory)
        return replace(record, directory=self._directory)


def episode_directory(root: Path, task_id: str, seed: int) -> Path:
    """Where an episode of an evaluation lies, `root/<suite>/<task>/s<seed>`; no task id leads out of it. Pure."""
    parts = [quote(part, safe=" ") for part in task_id.split("/") if part.strip(".")]
    return root.joinpath(*parts, f"s{seed}")


def read_episode(directory: Path) -> EpisodeRecord:
    """A recorded episode with its steps, a partial one too.

    Raises:
        RecordError: no episode lies there, or it is damaged before its last line.
    """
    record = read_outcome(directory)
    path = directory / "steps.jsonl"
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error}") from error
    complete = lines[:-1]  # the last line has no newline: it is empty, or was cut off while it was written
    return replace(record, decisions=tuple(_step(path, n, line) for n, line in enumerate(complete, 1)))


def read_outcome(directory: Path) -> EpisodeRecord:
    """A recorded episode without its steps.

    Raises:
        RecordError: no episode lies there, or it is damaged.
    """
    path = directory / "episode.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored.get("format") != FORMAT:
            raise RecordError(f"{path} has format {stored.get('format')!r}, this version reads {FORMAT}")
        return EpisodeRecord(
            **{key: value for key, value in stored.items() if key in _EPISODE_FIELDS}, directory=directory
        )
    except FileNotFoundError as error:
        raise RecordError(f"{directory} holds no recorded episode (there is no episode.json)") from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RecordError(f"cannot read {path}: {type(error).__name__}: {error}") from error


def find_episodes(root: Path, *, partial: bool = False) -> Iterator[Path]:
    """Directories of all recorded episodes at or below a directory, sorted by name; others may be written meanwhile."""
    for folder, below, names in os.walk(root):  # passes over what is renamed while it looks
        below.sort()
        if "episode.json" in names:
            below.clear()
            if partial or not folder.endswith(PARTIAL):
                yield Path(folder)


def _step(path: Path, number: int, line: str) -> StepRecord:
    try:
        known = {key: value for key, value in json.loads(line).items() if key in _STEP_FIELDS}
        stored: dict[str, Any] = {key: tuple(value) if key in _STEP_TUPLES else value for key, value in known.items()}
        return StepRecord(**stored)
    except (ValueError, TypeError, AttributeError) as error:
        raise RecordError(f"{path}, line {number}: {type(error).__name__}: {error}") from error


def _episode_fields(record: EpisodeRecord) -> dict[str, Any]:
    return {"format": FORMAT, **{key: value for key, value in asdict(record).items() if key not in _NOT_STORED}}


def _dumps(value: object) -> str:
    """JSON in ASCII: what no encoding can hold (lone surrogates) is escaped."""
    return json.dumps(value, allow_nan=False)


def replace_json(path: Path, value: object) -> None:
    """Write a small JSON file whole or not at all. Raises `OSError`."""
    partial = path.with_name(f".{path.name}.new")
    partial.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _write_png(path: Path, image: NDArray[np.uint8]) -> None:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)  # screens are drawn: more effort saves little
    path.write_bytes(buffer.getvalue())


class explained:  # noqa: N801 - reads as a word in `with`
    """Turns the disk's errors into ones that say what to do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise RecordError(f"cannot write {self._path} ({error}): check space, owner and rights") from error
