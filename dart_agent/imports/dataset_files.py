"""Our own exports of data sets, read back: Parquet files with a row per decision, its screenshot in it.

Invariants:
    - Rows are read a few at a time, and an episode is one run of rows with the steps 0, 1, 2, ...: it may go on in the
      next file, and what is cut off or out of order is refused.
    - Nothing of a row is trusted: a field of another type refuses its episode, and the others are imported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.imports.archives import ALLOWANCE, RATIO
from dart_agent.imports.found_episodes import (
    MOST_STEPS,
    Found,
    FoundEpisode,
    Refused,
    RefusedError,
    ended_episode,
    image_size,
    score_field,
    seed_field,
    text_field,
    with_actions,
)
from dart_gym.core.actions import action_from_dict
from dart_gym.core.errors import MissingDependencyError
from dart_gym.core.outcomes import TerminalState

EVALUATOR = "dataset/score"
MOST_BYTES = 1 << 30
"""Of the images of one episode, which are in memory together."""

MOST_IDS = 1 << 31
_ROWS = 8
_COLUMNS = ("episode", "step", "steps", "task_id", "instruction", "screenshot", "actions", "text", "terminal", "score")
Row = dict[str, Any]


def find_dataset(files: Sequence[Path]) -> Iterator[Found]:
    """Yield the episodes of Parquet files, in the order of the files.

    Raises:
        MissingDependencyError: if pyarrow is not installed.
    """
    rows: list[Row] = []
    size, where = 0, ""
    for name, row in _rows(files):
        if isinstance(row, RefusedError):
            yield Refused(name, str(row))
            continue
        step = row.get("step")
        if rows and (step == 0 or row.get("episode") != rows[0].get("episode")):
            yield _found(rows, where)
            rows, size = [], 0
        if not rows:
            where = f"{row.get('episode')!s:.100} of {name}"
        size += len(_bytes(row.get("screenshot")) or b"") + len(_bytes(row.get("screenshot_after")) or b"")
        if not rows or (len(rows) < MOST_STEPS and size <= MOST_BYTES):  # one that lacks rows is refused
            rows.append(row)
    if rows:
        yield _found(rows, where)


def _rows(files: Sequence[Path]) -> Iterator[tuple[str, Row | RefusedError]]:
    try:
        from pyarrow import parquet
        from pyarrow.lib import ArrowException
    except ImportError as error:
        raise MissingDependencyError('Parquet files need pyarrow: pip install "dart-gui[export]"') from error
    for path in files:
        try:
            with parquet.ParquetFile(path) as file:
                if lacking := ", ".join(sorted({*_COLUMNS} - {*file.schema_arrow.names})):
                    yield path.name, RefusedError(f"it is no data set of ours: it lacks the columns {lacking}")
                    continue
                groups = (file.metadata.row_group(index) for index in range(file.metadata.num_row_groups))
                if sum(group.total_byte_size for group in groups) > ALLOWANCE + RATIO * path.stat().st_size:
                    yield path.name, RefusedError(f"it unpacks to more than {RATIO} times its size")
                    continue
                for batch in file.iter_batches(batch_size=_ROWS):
                    yield from ((path.name, row) for row in batch.to_pylist())
        except (ArrowException, OSError, ValueError) as error:
            yield path.name, RefusedError(f"it cannot be read ({str(error).strip():.200})")


def _found(rows: list[Row], where: str) -> Found:
    try:
        return _episode(rows, where)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        why = str(error) if isinstance(error, RefusedError) else f"it is no row of ours ({error!r:.100})"
        return Refused(where, why)


def _episode(rows: list[Row], where: str) -> FoundEpisode:
    first, last = rows[0], rows[-1]
    if [row["step"] for row in rows] != list(range(len(rows))) or first["steps"] != len(rows):
        raise RefusedError(f"{len(rows)} of its {first['steps']!r:.20} steps are there, or more than can be read")
    steps = []
    for index, row in enumerate(rows):
        try:
            steps.append((_step(row), _bytes(row["screenshot"])))
        except RefusedError as error:
            raise RefusedError(f"step {index}: {error}") from error
    lost_by = text_field(first, "lost_by", default="")
    trajectory = Trajectory(
        task_id=text_field(first, "task_id"),
        seed=seed_field(first),
        instruction=text_field(first, "instruction", default=""),
        task_hash=text_field(first, "task_hash", default=""),
        source=text_field(first, "source", default="evaluation"),
        policy=text_field(first, "policy", default=""),
        app=text_field(first, "app", default=""),
        terminal=TerminalState(first["terminal"]),
        score=None if lost_by else score_field(first),
        evaluator=text_field(first, "evaluator", default=EVALUATOR),
        detail=text_field(first, "detail", default=""),
        lost_by=lost_by,
    )
    return ended_episode(where, "", trajectory, steps, _bytes(last.get("screenshot_after")), members=True)


def _step(row: Row) -> Step:
    shot = _bytes(row["screenshot"])
    screen = image_size(shot) if shot else (0, 0)
    step = Step(
        text=text_field(row, "text", default=""),
        thought=text_field(row, "thought", default=""),
        actor=text_field(row, "actor", default="policy"),
        error=text_field(row, "error", default=""),
        action_error=text_field(row, "action_error", default=""),
        terminal=text_field(row, "step_terminal", default=""),
        response_ids=_ids(row.get("response_ids") or ()),
        logprobs=tuple(math.nan if value is None else float(value) for value in row.get("logprobs") or ()),
        timings={str(name): float(value) for name, value in json.loads(row.get("timings") or "{}").items()},
    )
    actions = tuple(action_from_dict(action) for action in json.loads(row["actions"]))
    return with_actions(step, actions, screen if shot else None)


def _ids(values: Sequence[Any]) -> tuple[int, ...]:
    if not all(isinstance(value, int) and 0 <= value < MOST_IDS for value in values):
        raise RefusedError("response_ids holds what is no id of a token")
    return tuple(values)


def _bytes(image: Any) -> bytes | None:
    """The file of an image as `datasets` stores it; None without one."""
    data = image.get("bytes") if isinstance(image, dict) else None
    return data if isinstance(data, bytes) and data else None
