"""Imports data of others as recorded episodes, which everything that reads an evaluation then reads.

Invariants:
    - Episodes are read and written one at a time, so that memory does not grow with their number.
    - An episode is imported whole or not at all. An episode that exists already is not changed.
    - The report counts what was written and says why the rest was not.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dart_agent.episodes.episode_files import MAX_IMAGE, EpisodeWriter, RecordError, episode_directory
from dart_agent.episodes.screenshots import decode_image
from dart_agent.episodes.trajectory import Pixels, Step
from dart_agent.episodes.trajectory_format import TRAJECTORY_FILE
from dart_agent.imports.agentnet import find_agentnet
from dart_agent.imports.archives import is_archive, unpack
from dart_agent.imports.chat_files import find_chats
from dart_agent.imports.dataset_files import find_dataset
from dart_agent.imports.found_episodes import Found, FoundEpisode, Refused, RefusedError, json_lines
from dart_agent.imports.osworld_directories import LINES, find_results

PROBLEMS_KEPT = 20
PARQUET = ".parquet"


@dataclass(slots=True)
class ImportReport:
    """Counts of an import.

    Attributes:
        imported: episodes that were written.
        known: episodes that were there already.
        refused: what could not be imported.
        unseen: decisions of imported episodes that have no screenshot, and cannot be learnt from.
        places: directories that hold imported episodes, with their number.
        problems: the first reasons for refusals.
    """

    imported: int = 0
    known: int = 0
    refused: int = 0
    unseen: int = 0
    places: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def import_episodes(source: str | Path, out: str | Path, *, examples: str | Path | None = None) -> ImportReport:
    """Record the episodes of a directory, a JSONL file or an archive of others.

    Args:
        source: OSWorld's results, a data set in AgentNet's layout, or an export of ours of any kind.
        out: directory to record in; what it holds already stays.
        examples: OSWorld's `evaluation_examples`, which say what each task asks.

    Raises:
        RecordError: if the source is nothing that is known, or nothing can be written.
    """
    report, seen = ImportReport(), Counter[Path]()
    source, out = Path(source), Path(out)
    with ExitStack() as stack:
        if is_archive(source):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dart-agent-")))
            unpack(source, folder)
            source, archive = folder, source
            stack.enter_context(_named(folder, archive, report))
        for found in find(source, Path(examples) if examples is not None else None):
            if isinstance(found, FoundEpisode):
                _record(found, out, report, seen)
            else:
                _refuse(report, found)
    return report


@contextmanager
def _named(folder: Path, archive: Path, report: ImportReport) -> Iterator[None]:
    """Have messages name an archive in the place of the folder that it was unpacked to."""
    try:
        yield
    except RecordError as error:
        raise RecordError(str(error).replace(str(folder), str(archive))) from error
    finally:
        report.problems = [problem.replace(str(folder), str(archive)) for problem in report.problems]


def find(source: Path, examples: Path | None) -> Iterator[Found]:
    """Yield what a source holds, by what it looks like.

    Raises:
        RecordError: if the source has no known layout.
    """
    if not source.exists():
        raise RecordError(f"{source} does not exist")
    if (source / "rows" / "rollout_run.jsonl").is_file():
        raise RecordError(f"{source} is a run in one file: `dart-train data import CONFIG FILE` reads that")
    files = [source] if source.is_file() else sorted(source.rglob("*.jsonl"))
    if any(path.name == LINES for path in files):
        yield from find_results(source if source.is_dir() else source.parent, examples)
        return
    parquet = [source] if source.suffix == PARQUET else sorted(source.rglob(f"*{PARQUET}"))
    files = [path for path in files if path.suffix != PARQUET]
    if not files and not parquet:
        raise RecordError(f"{source} holds {_nothing(source)}")
    if parquet:
        yield from find_dataset(parquet)
    for path in files:
        first = next((line for _, line in json_lines(path) if isinstance(line, dict)), {})
        if source.is_file() and not first:
            raise RecordError(f"{source} is no JSONL file, no Parquet file and no archive: there is nothing to import")
        if "messages" in first:
            yield from find_chats(path)
        elif "traj" in first or source.is_file():
            yield from find_agentnet(path)
        else:  # such as the table of tasks that comes with a data set
            yield Refused(str(path.relative_to(source)), "it holds no trajectories: neither traj nor messages")


def _nothing(source: Path) -> str:
    """Return why there is nothing to import, with the next step where the source is something else of ours."""
    if any(source.rglob(TRAJECTORY_FILE)):
        return (
            "recorded episodes already, which every command reads as they are (a run's archive: dart-train data import)"
        )
    return f"no {LINES} of OSWorld, no other JSONL file and no Parquet file"


def _refuse(report: ImportReport, refused: Refused) -> None:
    report.refused += 1
    if len(report.problems) < PROBLEMS_KEPT:
        report.problems.append(f"{refused.where}: {refused.why}")


def _record(found: FoundEpisode, out: Path, report: ImportReport, seen: Counter[Path]) -> None:
    root, record = out / found.place, found.trajectory
    directory = episode_directory(root, record.task_id, record.seed)
    member = seen[directory] if found.members else 0
    seen[directory] += 1
    if member:
        root = root / f"member-{member}"
        directory = episode_directory(root, record.task_id, record.seed)
    if directory.exists():
        report.known += 1
        return
    try:
        _write(found, root)
    except RefusedError as error:
        shutil.rmtree(directory.with_name(directory.name + ".partial"), ignore_errors=True)
        _refuse(report, Refused(found.where, str(error)))
        return
    report.imported += 1
    report.places[str(root)] += 1
    report.unseen += sum(shot is None for _, shot in found.steps)


def _write(found: FoundEpisode, root: Path) -> None:
    """Write an episode, with one screenshot in memory at a time.

    Raises:
        RefusedError: if an image is damaged.
    """
    record, last = found.trajectory, len(found.steps) - 1
    with EpisodeWriter(
        root, record.task_id, record.seed, policy=record.policy, app=record.app, source=record.source
    ) as writer:
        named = writer.begin(record)
        for index, (step, shot) in enumerate(found.steps):
            writer.step(_with_pixels(step, shot, found.after if index == last else None))
        writer.finish(replace(record, trajectory_id=named.trajectory_id))


def _with_pixels(step: Step, shot: Path | bytes | None, after: Path | bytes | None) -> Step:
    read = [None if image is None else decoded(image) for image in (shot, after)]
    return replace(step, pixels=Pixels(screen=read[0], after=read[1]))


def decoded(image: Path | bytes) -> NDArray[np.uint8]:
    """Return the pixels of an image.

    Raises:
        RefusedError: if the image is damaged or too large.
    """
    try:
        if isinstance(image, Path):
            with image.open("rb") as file:
                image = file.read(MAX_IMAGE + 1)
        if len(image) > MAX_IMAGE:
            raise RefusedError(f"an image has more than {MAX_IMAGE} bytes")
        return decode_image(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise RefusedError(f"an image cannot be read ({error})") from error
