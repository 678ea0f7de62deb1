"""Trajectories and screenshots on disk.

Layout below the root:
    trajectories/<trajectory_id>/trajectory.msgpack     written under a temporary name, then renamed
    images/<first two digits>/<hash>.png                              each screenshot once, by the hash of its pixels

Invariants:
    - What has its final name is complete. A rename is atomic; nothing is written in place.
    - An image's name is the hash of its pixels, and is checked when it is read.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import os
import re
import shutil
import struct
import threading
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_gym.outcomes import TerminalState
from dart_train.errors import CorruptDataError, DiskFullError, InvalidTrajectoryError, ReadOnlyError
from dart_train.trajectory import Step, Trajectory

KNOWN_IMAGES = 200_000  # hashes remembered so that a screenshot seen before costs no look at the disk
_TEMPORARY = ".tmp-"
_SAFE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+-]{0,190}")
_IMAGE_HASH = re.compile(r"[0-9a-f]{32}")
_TRAJECTORY_FIELDS = tuple(field.name for field in dataclasses.fields(Trajectory))
_STEP_FIELDS = tuple(field.name for field in dataclasses.fields(Step))
_STEP_TUPLES = ("prompt_ids", "image_hashes", "sampled_ids", "logprobs", "version", "actions")


def image_hash(image: NDArray[np.uint8]) -> str:
    """Return the content hash of an (H, W, 3) uint8 image: 32 hex digits, of its shape and pixels."""
    digest = hashlib.blake2b(repr(image.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(image).data)
    return digest.hexdigest()


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """Return an (H, W, 3) uint8 image as PNG.

    Rows are not filtered: on drawn screens that is as small as with filters, and five times as fast as finding them.
    """
    height, width = image.shape[:2]
    rows = np.zeros((height, 1 + width * 3), np.uint8)  # each row begins with its filter type, 0: none
    rows[:, 1:] = image.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.data, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


class TrajectoryFiles:
    """The data directory of one run. Thread-safe; several processes may use the same directory.

    Args:
        root: the directory; made if it is not there.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self._trajectories = self.root / "trajectories"
        self._images = self.root / "images"
        self._known_images: set[str] = set()
        self._serial = 0
        self._owner = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._lock = threading.Lock()
        with _explained(self.root):
            self._trajectories.mkdir(parents=True, exist_ok=True)
            self._images.mkdir(exist_ok=True)

    def trajectory_path(self, trajectory_id: str) -> Path:
        """Return the directory of a trajectory.

        Raises:
            InvalidTrajectoryError: the id cannot be the name of a directory.
        """
        if not _SAFE_ID.fullmatch(trajectory_id):
            raise InvalidTrajectoryError(
                f"trajectory id {trajectory_id!r} is no safe directory name: use 1 to 191 of letters, digits and ._=+-"
                ", beginning with a letter, digit or _"
            )
        return self._trajectories / trajectory_id

    def image_path(self, image_id: str) -> Path:
        """Return the file of an image, by its hash."""
        if not _IMAGE_HASH.fullmatch(image_id):
            raise InvalidTrajectoryError(f"{image_id!r} is no image hash: take it from data.image_hash(image)")
        return self._images / image_id[:2] / f"{image_id}.png"

    def write_images(self, images: Mapping[str, NDArray[np.uint8]]) -> None:
        """Store images under their hashes; those that are there already cost nothing."""
        for image_id, image in images.items():
            if image_id in self._known_images:
                continue
            path = self.image_path(image_id)
            if not path.exists():
                if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image_hash(image) != image_id:
                    raise InvalidTrajectoryError(
                        f"image {image_id} of shape {image.shape}, {image.dtype} is not what its hash says: "
                        "screenshots are (H, W, 3) uint8, named by data.image_hash(image), and not changed afterwards"
                    )
                self._write_file(path, encode_png(image))
            if len(self._known_images) >= KNOWN_IMAGES:
                self._known_images.clear()
            self._known_images.add(image_id)

    def has_image(self, image_id: str) -> bool:
        """Whether an image is stored."""
        return image_id in self._known_images or self.image_path(image_id).exists()

    def check_images(self, image_ids: Iterable[str]) -> None:
        """Raise `CorruptDataError` for an image that is missing or empty, as after a power failure."""
        for image_id in image_ids:
            path = self.image_path(image_id)
            try:
                size = path.stat().st_size
            except OSError as error:
                raise CorruptDataError(path, error) from error
            if size == 0:
                raise CorruptDataError(path, "it is empty")

    def read_image(self, image_id: str) -> NDArray[np.uint8]:
        """Return a stored image, (H, W, 3) uint8, read-only.

        Raises:
            CorruptDataError: missing, damaged, or not the image of that hash.
        """
        path = self.image_path(image_id)
        try:
            with Image.open(io.BytesIO(path.read_bytes())) as picture:
                image = np.asarray(picture)
        except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for damaged files
            raise CorruptDataError(path, error) from error
        if image_hash(image) != image_id:
            raise CorruptDataError(path, "its pixels have another hash")
        image.setflags(write=False)
        return image

    def write_trajectory(self, trajectory: Trajectory, *, replace: bool = False) -> bool:
        """Write a trajectory's directory; False if one of its name is there already and `replace` is not set."""
        final = self.trajectory_path(trajectory.trajectory_id)
        temporary = self._temporary(self._trajectories)
        with _explained(final):
            temporary.mkdir()
            try:
                (temporary / "trajectory.msgpack").write_bytes(pack_trajectory(trajectory))
                if replace and final.exists():
                    final.rename(self._temporary(self._trajectories))  # collected by `remove_leftovers`
                temporary.rename(final)
            except OSError as error:
                shutil.rmtree(temporary, ignore_errors=True)
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return False
                raise
        return True

    def read_trajectory(self, trajectory_id: str) -> Trajectory:
        """Return a stored trajectory.

        Raises:
            CorruptDataError: missing or damaged.
        """
        path = self.trajectory_path(trajectory_id) / "trajectory.msgpack"
        try:
            return unpack_trajectory(path.read_bytes())
        except (OSError, ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise CorruptDataError(path, error) from error

    def remove_leftovers(self, older_than_s: float = 3600.0) -> int:
        """Remove what killed processes left under temporary names; return how many there were."""
        count = 0
        for folder in (self._trajectories, *self._images.iterdir()):
            for path in folder.glob(f"{_TEMPORARY}*"):
                try:
                    if time.time() - path.stat().st_mtime < older_than_s:
                        continue
                    if path.is_dir():
                        shutil.rmtree(path)
                    else:
                        path.unlink()
                except FileNotFoundError:  # another process was faster
                    continue
                count += 1
        return count

    def _write_file(self, path: Path, data: bytes) -> None:
        temporary = self._temporary(path.parent)
        with _explained(path):
            try:
                try:
                    temporary.write_bytes(data)
                except FileNotFoundError:  # the first of its folder
                    temporary.parent.mkdir(exist_ok=True)
                    temporary.write_bytes(data)
                temporary.rename(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise

    def _temporary(self, folder: Path) -> Path:
        with self._lock:
            self._serial += 1
            return folder / f"{_TEMPORARY}{self._owner}-{self._serial}"


class _explained:  # noqa: N801 - reads as a word in `with`
    """Turns the disk's errors into ones that say what to do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(self._path) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise ReadOnlyError(f"{self._path} cannot be written ({error}): check owner, rights and mount") from error


def pack_trajectory(trajectory: Trajectory) -> bytes:
    """Return a trajectory as msgpack: a map of its fields, steps as maps of theirs."""
    fields = {name: getattr(trajectory, name) for name in _TRAJECTORY_FIELDS}
    fields["terminal"] = trajectory.terminal.value
    fields["steps"] = [{name: getattr(step, name) for name in _STEP_FIELDS} for step in trajectory.steps]
    return msgpack.packb(fields)


def unpack_trajectory(data: bytes) -> Trajectory:
    """Return the trajectory of `pack_trajectory`.

    Raises:
        ValueError, TypeError, KeyError, msgpack.UnpackException: the data is not one.
    """
    fields = msgpack.unpackb(data)
    fields["terminal"] = TerminalState(fields["terminal"])
    fields["steps"] = tuple(_unpack_step(step) for step in fields["steps"])
    return Trajectory(**fields)


def _unpack_step(fields: dict[str, Any]) -> Step:
    for name in _STEP_TUPLES:
        fields[name] = tuple(fields[name])
    return Step(**fields)
