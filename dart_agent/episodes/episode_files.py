"""Recorded episodes in a directory: written step by step while they are played, read by viewer, exports and statistics.

Layout and bytes are those of `trajectory_format`: what an evaluation records and what a training run records differ in
nothing but their place.

Invariants:
    - An episode is written below a name that ends in ".partial" and renamed when it is complete. A file with its final
      name is complete; what a killed process left is readable up to its last whole step.
    - An image is stored before the step that shows it, whole or not at all.
    - What is complete is on the disk, its images too: a power cut loses no episode after its `finish` has returned.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgpack
import numpy as np
from numpy.typing import NDArray

from dart_agent.episodes.screenshots import ImageNames, decode_image, image_hash
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.episodes.trajectory_format import (
    IMAGE_FORMATS,
    IMAGE_ID,
    IMAGES,
    PARTIAL,
    TRAJECTORIES,
    TRAJECTORY_FILE,
    episode_name,
    image_key,
    pack_beginning,
    pack_end,
    pack_step,
    unpack_trajectory,
)
from dart_agent.models.model_directory import Decoder
from dart_gym.core.errors import DartGymError
from dart_gym.utils.durable_files import make_directories, remove_tree, rename, sync_directories, sync_tree, write_file
from dart_gym.utils.png import encode_png

SOURCE = "evaluation"
OLD = ".old"
MAX_IMAGE = 64 << 20
"""Bytes of a screenshot's file that are read at most."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image of an episode, whose bytes are PNG or else lossless WebP."""

    data: bytes
    pixels: NDArray[np.uint8]
    is_png: bool

    @property
    def kind(self) -> str:
        """Its media type."""
        return "image/png" if self.is_png else "image/webp"


class RecordError(DartGymError):
    """A recorded episode cannot be read or written; the message names the file."""


class EpisodeWriter:
    """Writes one episode while it is played: an `EpisodeRecorder`, and a context manager.

        with EpisodeWriter(root, task_id, seed) as writer:
            trajectory = await play(policy, session, task_id, seed=seed, recorder=writer)
            writer.finish(trajectory)

    Without `finish` (a killed process, an error) the directory keeps its partial name.

    Args:
        root: the directory with `trajectories` and `images`, made if it is not there.
        seed: of the task's initial state; an episode that lies there already is replaced.
        source: what it was played for.
        decode: token ids to texts, so that the viewer can show tokens; None keeps ids alone.

    Raises:
        RecordError: the directory cannot be written.
    """

    def __init__(
        self,
        root: str | Path,
        task_id: str,
        seed: int,
        *,
        policy: str = "",
        app: str = "",
        source: str = SOURCE,
        decode: Decoder | None = None,
    ) -> None:
        self._root, self._name = Path(root), episode_name(task_id, seed)
        self._directory = episode_directory(root, task_id, seed)
        self._partial = self._directory.with_name(self._name + PARTIAL)
        self._policy = policy
        self._app = app
        self._source = source
        self._decode = decode
        self._names = ImageNames()
        self._image_folders: set[Path] = set()

    def __enter__(self) -> EpisodeWriter:
        with explained(self._partial):
            if self._partial.exists():
                shutil.rmtree(self._partial)
            make_directories(self._partial)
            self._file: io.FileIO = (self._partial / TRAJECTORY_FILE).open("ab", buffering=0)
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def begin(self, trajectory: Trajectory) -> Trajectory:
        """Write what is played; return the trajectory with its name."""
        named = replace(trajectory, trajectory_id=self._name, source=self._source, policy=self._policy, app=self._app)
        self._append(pack_beginning(named))
        return named

    def step(self, step: Step) -> Step:
        """Write a decision and its images; return it without pixels."""
        named, images = self._names.name(step)
        if self._decode is not None and named.response_ids:
            named = replace(named, tokens=tuple(self._decode(named.response_ids)))
        for image_id, image in images.items():
            self._write_image(image_id, image)
        self._append(pack_step(named))
        return named

    def finish(self, trajectory: Trajectory) -> Trajectory:
        """Complete the episode under its final name; return the trajectory."""
        self._append(pack_end(trajectory))
        with explained(self._directory):
            sync_directories(self._image_folders)
            sync_tree(self._partial)
            if self._directory.exists():  # an episode that was lost
                remove_tree(self._directory, self._directory.with_name(self._name + OLD + PARTIAL))
            rename(self._partial, self._directory)
        return trajectory

    def _append(self, data: bytes) -> None:
        with explained(self._partial):
            view = memoryview(data)
            while view:  # a nearly full disk takes a part, then says that it is full
                view = view[self._file.write(view) :]

    def _write_image(self, image_id: str, image: NDArray[np.uint8] | bytes) -> None:
        path = self._root / image_key(image_id)
        self._image_folders.add(path.parent)  # another episode's writer may not have synced it yet
        if path.exists():
            return
        with explained(path):
            make_directories(path.parent)
            write_file(path, image if isinstance(image, bytes) else encode_png(image))


def episode_directory(root: str | Path, task_id: str, seed: int) -> Path:
    """Where an episode of an evaluation lies; no task id leads out of the root. Pure."""
    return Path(root) / TRAJECTORIES / episode_name(task_id, seed)


def read_episode(directory: str | Path, *, steps: bool = True) -> Trajectory:
    """Read a recorded episode, with or without its steps; of one that was cut off, the complete steps.

    Raises:
        RecordError: if there is no episode, or it is damaged.
    """
    directory = Path(directory)
    path = directory / TRAJECTORY_FILE
    if path.exists() and not path.is_file():
        raise RecordError(f"{path} is no file: what others give may hold anything, and this is not read")
    try:
        return unpack_trajectory(path.read_bytes(), partial=directory.name.endswith(PARTIAL), with_steps=steps)
    except FileNotFoundError as error:
        raise RecordError(f"{directory} holds no recorded episode (there is no {TRAJECTORY_FILE})") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise RecordError(f"cannot read {path}: {type(error).__name__}: {error}") from error


def find_episodes(root: str | Path, *, partial: bool = False) -> Iterator[Path]:
    """Directories of all recorded episodes at or below a directory, sorted by name; others may be written meanwhile."""
    return (Path(folder) for folder, _ in look_for_episodes(root) if partial or not folder.endswith(PARTIAL))


def look_for_episodes(root: str | Path) -> Iterator[tuple[str, os.stat_result]]:
    """The same, whole and partial ones, with what the system says of their files, which is all it asks for."""
    pending = [str(root)]
    while pending:
        folder = pending.pop()
        with contextlib.suppress(OSError):  # it has no such file, or was renamed at this moment
            if not stat.S_ISDIR((status := os.stat(f"{folder}/{TRAJECTORY_FILE}")).st_mode):
                yield folder, status
                continue
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            below = sorted((entry.name for entry in entries if entry.is_dir(follow_symlinks=False)), reverse=True)
            passed = IMAGES if TRAJECTORIES in below else ""  # thousands of files, and no episode
            pending.extend(f"{folder}/{name}" for name in below if name != passed)


def image_file(directory: str | Path, image_id: str) -> Path | None:
    """Where an image that an episode shows lies; None where it is missing. `read_image` says whether it is that one."""
    if not IMAGE_ID.fullmatch(image_id):
        return None
    root = Path(directory).absolute().parents[1]
    paths = (root / image_key(image_id, image_format) for image_format in IMAGE_FORMATS)
    return next((path for path in paths if path.is_file()), None)


def read_image(directory: str | Path, image_id: str) -> StoredImage | None:
    """An image, by content hash ("" for none), of `<root>/trajectories/<id>`; None where it is missing.

    Raises:
        RecordError: what lies there is not the image of that hash, but damaged, or a link to something else.
    """
    path = image_file(directory, image_id)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            data = file.read(MAX_IMAGE + 1)
        pixels = decode_image(data)
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for damaged files
        raise RecordError(f"cannot read {path}: {error}") from error
    if len(data) > MAX_IMAGE or image_hash(pixels) != image_id:
        raise RecordError(f"{path} is not the image of that hash: it is damaged, or was put there by somebody else")
    return StoredImage(data, pixels, is_png=path.suffix == ".png")


def decoded(trajectory: Trajectory, decode: Decoder) -> Trajectory:
    """The trajectory with the text of every token, where it was recorded without. Pure."""
    steps = tuple(
        replace(step, tokens=tuple(decode(step.response_ids))) if step.response_ids and not step.tokens else step
        for step in trajectory.steps
    )
    return replace(trajectory, steps=steps)


def write_json(path: Path, value: object) -> None:
    """Write a small JSON file atomically.

    Raises:
        RecordError: if it cannot be written.
    """
    with explained(path):
        write_file(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


class explained:  # noqa: N801 - reads as a word in `with`
    """Turns the disk's errors into ones that say what to do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise RecordError(f"cannot write {self._path} ({error}): check space, owner and rights") from error
