"""Brings successes from elsewhere into the experience pool: another run's, a person's, or a hinted policy's.

Invariants:
    - What is stored is what a policy without the hint would have been asked: the hint's tokens leave every prompt, the
      rest stays token by token. A prompt in which the hint is not found exactly is not imported.
    - Behaviour log-probabilities stay only where the prompt stays: a hinted policy's belong to another prompt.
    - Importing twice stores once: the new id is a digest of the content.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.episodes.trajectory_format import pack_trajectory
from dart_train.core.data_states import Provenance
from dart_train.core.train_errors import CorruptDataError, DataError, InvalidTrajectoryError
from dart_train.data.curation import experience_pool
from dart_train.data.files.trajectory_files import TrajectoryFiles

if TYPE_CHECKING:
    from dart_train.data.manager.data_manager import DataManager

_log = logging.getLogger(__name__)
_SOURCES = {
    Provenance.ROLLOUT: experience_pool.COLLECTED_SOURCE,
    Provenance.ORACLE: "oracle",
    Provenance.HUMAN: "human",
    Provenance.HINTED: "hinted",
}

Found = tuple[Trajectory, dict[str, NDArray[np.uint8]]]


@dataclass(slots=True)
class ImportReport:
    """Counts of an import.

    Attributes:
        without_logprobs: imported ones whose importance weight is 1.
    """

    imported: int = 0
    known: int = 0
    without_logprobs: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)


def read_successes(root: str | Path, tasks: Sequence[str] = ()) -> Iterator[Found]:
    """Yield the successes of a data directory, with their screenshots.

    Raises:
        DataError: if it holds no trajectories.
    """
    text = str(root)
    if "://" not in text and not (Path(text) / "trajectories").is_dir():
        if not (Path(text) / "data" / "trajectories").is_dir():
            raise DataError(f"{text} has no trajectories: give a run's directory, or its data directory")
        text = str(Path(text) / "data")
    files = TrajectoryFiles(text)
    for name, _ in sorted(files.stored_trajectories()):
        trajectory = files.read_trajectory(name)
        success = trajectory.terminal.trainable and bool(trajectory.score) and bool(trajectory.steps)
        if success and (not tasks or trajectory.task_id in tasks):
            yield trajectory, {image: files.read_image(image) for image in sorted(trajectory.shown_images)}


def import_successes(
    data: DataManager,
    found: Iterable[Found],
    *,
    provenance: Provenance,
    origin: str = "",
    encode: Callable[[str], Sequence[int]] | None = None,
    hint_marker: str | None = None,
    write: Callable[[Trajectory, dict[str, NDArray[np.uint8]]], Found] | None = None,
) -> ImportReport:
    """Record successes and put them into the pool.

    Args:
        data: the run.
        found: successes and their screenshots.
        provenance: who made them.
        origin: where they come from, in words.
        encode: text to tokens, to strip a hint.
        hint_marker: text with which the hint begins.
        write: writes down what has no tokens of the run's model, such as imported episodes.

    Raises:
        DataError: if database or disk fail, or there is no way to strip the hint.
    """
    if provenance is Provenance.HINTED and (encode is None or not hint_marker):
        raise DataError("trajectories made with a hint need its marker, so that it can be stripped: --hint-marker")
    report = ImportReport()
    for trajectory, images in found:
        try:
            if write is not None:
                trajectory, images = write(trajectory, images)
            if provenance is Provenance.HINTED and encode is not None and hint_marker:
                trajectory = strip_hint(trajectory, encode, hint_marker)
            new = as_pooled(trajectory, data.run_id, provenance)
            added = not data.read(experience_pool.has, new.trajectory_id)
            if added:
                data.record(new, images)
                data.write(experience_pool.set_origin, new.trajectory_id, origin)
        except (InvalidTrajectoryError, CorruptDataError) as error:
            report.refused += 1
            report.problems.append(str(error))
            continue
        report.imported += added
        report.known += not added
        report.without_logprobs += added and any(len(step.logprobs) != len(step.response_ids) for step in new.steps)
    return report


def fill_pool(data: DataManager) -> int:
    """Put recorded successes into the pool that are not in it, such as demonstrations made while it was off."""
    rows = data.read(experience_pool.missing, data.config.pool_sources)
    count = 0
    for rollout_id, name in rows:
        try:
            trajectory = data.load_trajectory(name)
        except CorruptDataError as error:
            _log.warning("not put into the pool: %s", error)
            continue
        count += data.write(experience_pool.add, rollout_id, trajectory, time.time())
    return count


def strip_hint(trajectory: Trajectory, encode: Callable[[str], Sequence[int]], marker: str) -> Trajectory:
    """Return a trajectory as if the policy had not been told how. Raises `InvalidTrajectoryError`.

    That is where there is no hint, a prompt does not hold the instruction token by token, or a response repeats the
    hint, which would teach the policy to make one up.
    """
    plain, found, _ = trajectory.instruction.partition(marker)
    plain = plain.rstrip()
    if not found or not plain:
        raise InvalidTrajectoryError(
            f"trajectory {trajectory.trajectory_id}: its instruction has no {marker!r} behind a text: give the marker "
            "with which its hint begins"
        )
    hint = trajectory.instruction[len(plain) :].strip()
    if any(hint in step.text for step in trajectory.steps):
        raise InvalidTrajectoryError(f"trajectory {trajectory.trajectory_id}: a response repeats the hint word by word")
    hinted_ids, plain_ids = tuple(encode(trajectory.instruction)), tuple(encode(plain))
    steps = []
    for index, step in enumerate(trajectory.steps):
        prompt = replace_ids(step.prompt_ids, hinted_ids, plain_ids)
        if prompt is None:
            raise InvalidTrajectoryError(
                f"step {index} of trajectory {trajectory.trajectory_id} does not hold its instruction token by token: "
                "it was made with another tokenizer or prompt, and its hint cannot be stripped"
            )
        steps.append(dataclasses.replace(step, prompt_ids=prompt, logprobs=()))
    return dataclasses.replace(trajectory, instruction=plain, steps=tuple(steps))


def replace_ids(ids: Sequence[int], old: Sequence[int], new: Sequence[int]) -> tuple[int, ...] | None:
    """Return token ids with the first occurrence of a run of ids replaced by another, or None without one."""
    ids, old = tuple(ids), tuple(old)
    for start in range(len(ids) - len(old) + 1) if old else ():
        if ids[start : start + len(old)] == old:
            return (*ids[:start], *new, *ids[start + len(old) :])
    return None


def as_pooled(trajectory: Trajectory, run_id: str, provenance: Provenance) -> Trajectory:
    """A success of elsewhere as one of the pool: own id, no group or version. Raises `InvalidTrajectoryError`."""
    if not experience_pool.belongs(trajectory):
        raise InvalidTrajectoryError(
            f"trajectory {trajectory.trajectory_id} is no success to learn from (ended in {trajectory.terminal}, "
            f"reward {trajectory.score}, {len(trajectory.steps)} steps)"
        )
    new = dataclasses.replace(
        trajectory,
        trajectory_id="",
        run_id=run_id,
        group_key="",
        source=_SOURCES[provenance],
        steps=tuple(_plain_step(step) for step in trajectory.steps),
    )
    digest = hashlib.blake2b(pack_trajectory(new), digest_size=12).hexdigest()
    return dataclasses.replace(new, trajectory_id=f"pool-{digest}")


def _plain_step(step: Step) -> Step:
    complete = len(step.logprobs) == len(step.response_ids)
    return dataclasses.replace(step, version=(0, 0), logprobs=step.logprobs if complete else ())
