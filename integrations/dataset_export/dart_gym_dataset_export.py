"""Recorded episodes as a Hugging Face data set: one row per decision, screenshots in it as images. Needs `datasets`.

Invariants:
    - Actions, timings and prompts keep their meaning without this package: actions and timings are JSON texts, all else
      is plain columns.
    - Rows are made an episode at a time: the size of an evaluation is bounded by the disk, not by memory.
"""

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dart_agent.episodes.episode_files import RecordError, read_episode, read_image
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.exports.fresh_directories import fresh_directory
from dart_gym.core.errors import MissingDependencyError

ROWS_PER_FILE = 500


def build_dataset(directories: Sequence[Path], cache: Path, damaged: dict[Path, str] | None = None) -> Any:
    """Return a `datasets.Dataset` of recorded episodes.

    Args:
        directories: of the episodes.
        cache: directory that the data set lies in.
        damaged: takes why episodes are left out; where it is None, a damaged one is an error.

    Raises:
        MissingDependencyError: if `datasets` is not installed.
        RecordError: if there is no episode that can be read, or one is damaged.
    """
    datasets = _datasets()
    if not directories:
        raise RecordError("there are no recorded episodes to export: play some with dart-agent eval --out")

    def rows() -> Iterator[dict[str, Any]]:
        for directory in directories:
            yield from _rows_of(directory, damaged)

    try:
        return datasets.Dataset.from_generator(rows, features=_features(datasets), cache_dir=str(cache))
    except ValueError as error:
        if "corresponds to no data" not in str(error):
            raise
        why = f"all episodes are damaged ({next(iter(damaged.values()))})" if damaged else "no decision was recorded"
        raise RecordError(f"nothing to export: {why}") from None


def _rows_of(directory: Path, damaged: dict[Path, str] | None) -> list[dict[str, Any]]:
    """The rows of one episode; none where it is damaged."""
    try:
        return list(episode_rows(read_episode(directory), directory))
    except RecordError as error:
        if damaged is None:
            raise
        damaged[directory] = str(error)
        return []


def write_parquet(dataset: Any, out: Path) -> list[Path]:
    """Write a data set as Parquet files for `datasets.load_dataset(out)`; return them. Raises `RecordError`."""
    count = max(1, -(-len(dataset) // ROWS_PER_FILE))
    written = []
    try:
        (out / "data").mkdir(parents=True, exist_ok=True)
        for index in range(count):
            path = out / "data" / f"train-{index:05d}-of-{count:05d}.parquet"
            dataset.shard(count, index, contiguous=True).to_parquet(str(path))
            written.append(path)
    except OSError as error:
        raise RecordError(f"cannot write {out} ({error}): check space, owner and rights") from error
    return written


def export_dataset(episodes: Sequence[Path], out: Path) -> str:
    """The exporter "dataset"."""
    with tempfile.TemporaryDirectory(prefix="dart-agent-") as cache, fresh_directory(out) as place:
        damaged: dict[Path, str] = {}
        dataset = build_dataset(episodes, Path(cache), damaged)
        files = write_parquet(dataset, place)
    said = f"; {len(damaged)} damaged episodes left out ({next(iter(damaged.values()))})" if damaged else ""
    return f"{len(dataset)} steps in {len(files)} files{said}"


def episode_rows(trajectory: Trajectory, directory: Path) -> Iterator[dict[str, Any]]:
    """One row per decision of an episode, which lies in `directory`."""
    episode = f"{trajectory.task_id}/s{trajectory.seed}"
    for index, step in enumerate(trajectory.steps):
        shown, after = (read_image(directory, name) for name in (step.screenshot, step.screenshot_after))
        yield {
            "episode": episode,
            "step": index,
            "steps": len(trajectory.steps),
            "task_id": trajectory.task_id,
            "task_hash": trajectory.task_hash,
            "app": trajectory.app,
            "seed": trajectory.seed,
            "instruction": trajectory.instruction,
            "source": trajectory.source,
            "policy": trajectory.policy,
            "actor": step.actor,
            "screenshot": {"path": None, "bytes": shown.data} if shown else None,
            "screenshot_after": {"path": None, "bytes": after.data} if after else None,
            "width": step.screen[0],
            "height": step.screen[1],
            "thought": _plain(step.thought),
            "text": _plain(step.text),
            "actions": json.dumps(step.actions),
            "error": _plain(step.error),
            "action_error": _plain(step.action_error),
            "step_terminal": step.terminal,
            "response_ids": list(step.response_ids),
            "logprobs": [value if math.isfinite(value) else None for value in step.logprobs],
            "timings": json.dumps(step.timings),
            "terminal": trajectory.terminal,
            "score": trajectory.score,
            "evaluator": trajectory.evaluator,
            "detail": _plain(trajectory.detail),
            "lost_by": trajectory.lost_by,
        }


def _plain(text: str) -> str:
    """A text that UTF-8 can hold: half characters of a broken model become question marks."""
    return text.encode("utf-8", "replace").decode()


def _features(datasets: Any) -> Any:
    value, image, many = datasets.Value, datasets.Image, datasets.Sequence
    text, number, real = value("string"), value("int64"), value("float64")
    columns: dict[str, Any] = dict.fromkeys(
        ("episode", "task_id", "task_hash", "app", "instruction", "source", "policy", "actor", "thought", "text",
         "actions", "error", "action_error", "step_terminal", "timings", "terminal", "evaluator", "detail", "lost_by"),
        text,
    )  # fmt: skip
    columns |= dict.fromkeys(("step", "steps", "seed", "width", "height"), number)
    columns |= {
        "score": real,
        "screenshot": image(),
        "screenshot_after": image(),
        "response_ids": many(number),
        "logprobs": many(real),
    }
    return datasets.Features(columns)


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError('a data set needs the package datasets: pip install "dart-gui[export]"') from error
    return datasets
