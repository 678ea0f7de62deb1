"""Trajectories and screenshots in a directory or an object store (`object_storage`).

The layout below the root and the bytes of a trajectory are those of `dart_agent.episodes.trajectory_format`.

Invariants:
    - What has its final name is complete; nothing is written in place.
    - An image's name is the hash of its pixels, in every file format, and is checked when it is read.
    - An image that a trajectory is about to refer to is younger than `FRESH_S`: the clean-up removes only images that
      no trajectory refers to and that are older than `IMAGE_GRACE_S`, so it never races with recording.
"""

import io
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_agent.episodes import trajectory_format
from dart_agent.episodes.screenshots import decode_image, image_hash
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.episodes.trajectory_format import IMAGE_ID, PARTIAL, TRAJECTORY_FILE, pack_trajectory, unpack_trajectory
from dart_gym.utils import png
from dart_train.core.train_errors import CorruptDataError, DataError, InvalidTrajectoryError
from dart_train.data.files.object_storage import Directory, Entry, open_storage

KNOWN_IMAGES = 200_000  # hashes remembered so that a screenshot seen before costs no look at the disk
FRESH_S = 1800.0  # an image is written or touched again after so long, when a trajectory needs it
IMAGE_GRACE_S = 7200.0  # age from which an image without a trajectory is garbage; FRESH_S and the longest recording fit
REQUESTS = 16  # at the same time, to an object store
_SAFE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+-]{0,190}")


def encode_webp(image: NDArray[np.uint8]) -> bytes:
    """Return an (H, W, 3) uint8 image as lossless WebP: smaller than our PNG, and slower to make."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "WEBP", lossless=True, quality=50, method=4)
    return buffer.getvalue()


ENCODERS: dict[str, Callable[[NDArray[np.uint8]], bytes]] = {"png": png.encode_png, "webp": encode_webp}
AUTO = "auto"
LARGE_PIXELS = 1_000_000
"""In the format "auto", larger images are WebP: a tenth of the bytes, for 60 ms of a processor at 1920x1080."""


def trajectory_key(trajectory_id: str) -> str:
    """Return where a trajectory lies below the root.

    Raises:
        InvalidTrajectoryError: if the id cannot name a directory.
    """
    if not _SAFE_ID.fullmatch(trajectory_id):
        raise InvalidTrajectoryError(
            f"trajectory id {trajectory_id!r} is no safe directory name: use 1 to 191 of letters, digits and ._=+-"
            ", beginning with a letter, digit or _"
        )
    return f"trajectories/{trajectory_id}/{TRAJECTORY_FILE}"


def image_key(image_id: str, image_format: str = "png") -> str:
    """Return where an image lies below the root, by its hash.

    Raises:
        InvalidTrajectoryError: if it is not a hash.
    """
    if not IMAGE_ID.fullmatch(image_id):
        raise InvalidTrajectoryError(f"{image_id!r} is no image hash: take it from data.image_hash(image)")
    return trajectory_format.image_key(image_id, image_format)


class TrajectoryFiles:
    """Trajectories and screenshots of one run: PNG (fast), lossless WebP (smaller, slow), or by size. Thread-safe."""

    def __init__(self, root: str | Path, *, image_format: str = AUTO, options: dict[str, Any] | None = None) -> None:
        if image_format not in (AUTO, *ENCODERS):
            raise DataError(f"no image format {image_format!r}: use one of {', '.join((AUTO, *ENCODERS))}")
        self.storage = open_storage(root, options)
        self._image_format = image_format
        self._fresh_images: dict[str, float] = {}  # hash -> monotonic time at which its file was young
        if isinstance(self.storage, Directory):
            self.storage.make("trajectories", "images")

    @property
    def root(self) -> Path:
        """The directory. Raises `DataError` where the files are not in one."""
        if self.storage.directory is None:
            raise DataError(f"the files are at {self.storage.where}, which is no directory of this machine")
        return self.storage.directory

    # Screenshots

    def write_images(self, images: Mapping[str, NDArray[np.uint8] | bytes]) -> None:
        """Store images, or PNGs by `screenshots.pack`, by hash; those stored already cost next to nothing."""
        unseen = {name: image for name, image in images.items() if not self._is_fresh(name)}
        if self.storage.directory is None and len(unseen) > 1:
            with ThreadPoolExecutor(REQUESTS) as threads:  # each is two or three requests
                list(threads.map(self._write_image, unseen.keys(), unseen.values()))
        else:
            for name, image in unseen.items():
                self._write_image(name, image)
        self._settle_images(unseen)

    def _write_image(self, image_id: str, image: NDArray[np.uint8] | bytes) -> None:
        if self._refresh(image_id):
            return
        image_format = self._format_of(image)
        if isinstance(image, bytes) and image_format != "png":
            image = decode_image(image)
        data = image if isinstance(image, bytes) else self._encoded(image_id, image, image_format)
        self.storage.write(image_key(image_id, image_format), data)
        self._remember(image_id)

    def _format_of(self, image: NDArray[np.uint8] | bytes) -> str:
        if self._image_format != AUTO:
            return self._image_format
        height, width = (png.png_size(image) or (0, 0)) if isinstance(image, bytes) else image.shape[:2]
        return "webp" if height * width > LARGE_PIXELS else "png"

    def _encoded(self, image_id: str, image: NDArray[np.uint8], image_format: str) -> bytes:
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image_hash(image) != image_id:
            raise InvalidTrajectoryError(
                f"image {image_id} of shape {image.shape}, {image.dtype} is not what its hash says: "
                "screenshots are (H, W, 3) uint8, named by data.image_hash(image), and not changed afterwards"
            )
        return ENCODERS[image_format](image)

    def has_image(self, image_id: str) -> bool:
        """Return whether an image is stored, and stays so for as long as recording a trajectory takes."""
        return self._refresh(image_id)

    def find_image(self, image_id: str) -> Entry | None:
        """Return where an image lies; None if it is not stored."""
        # Re-encoding stores the WebP before it removes the PNG, so looking in this order never misses both.
        return self.storage.entry(image_key(image_id)) or self.storage.entry(image_key(image_id, "webp"))

    def check_images(self, image_ids: Iterable[str]) -> None:
        """Raise `CorruptDataError` for an image that is missing or empty, as after a power failure."""
        unseen = [name for name in dict.fromkeys(image_ids) if self.storage.directory or not self._is_fresh(name)]
        if self.storage.directory is None and len(unseen) > 1:
            with ThreadPoolExecutor(REQUESTS) as threads:  # each look is a request
                found = list(threads.map(self.find_image, unseen))
        else:
            found = [self.find_image(name) for name in unseen]
        for image_id, entry in zip(unseen, found, strict=True):
            if entry is None:
                raise CorruptDataError(self.storage.name(image_key(image_id)), "there is no such file")
            if entry.size == 0:
                raise CorruptDataError(self.storage.name(entry.key), "it is empty")
            if time.time() - entry.modified < FRESH_S:
                self._remember(image_id)

    def read_image(self, image_id: str) -> NDArray[np.uint8]:
        """Return a stored image, (H, W, 3) uint8, read-only.

        Raises:
            CorruptDataError: if it is missing or damaged.
        """
        key, data = self._image_bytes(image_id)
        try:
            image = decode_image(data)
        except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for damaged files
            raise CorruptDataError(self.storage.name(key), error) from error
        if image_hash(image) != image_id:
            raise CorruptDataError(self.storage.name(key), "its pixels have another hash")
        image.setflags(write=False)
        return image

    def image_size(self, image_id: str) -> tuple[int, int]:
        """Return (height, width) of a stored image, of a PNG by its first bytes. Raises `CorruptDataError`."""
        key = image_key(image_id)
        try:
            size = png.png_size(self.storage.head(key, png.HEAD))
        except FileNotFoundError:
            size = None
        except OSError as error:
            raise CorruptDataError(self.storage.name(key), error) from error
        if size is not None:
            return size
        height, width, _ = self.read_image(image_id).shape  # a WebP, or an error that says what is wrong
        return height, width

    def reencode_image(self, image_id: str) -> int:
        """Store a PNG as lossless WebP if that is smaller, and return the bytes saved.

        Raises:
            CorruptDataError: if the image is damaged; it stays as it is.
        """
        source = self.storage.entry(image_key(image_id))
        if source is None:
            return 0
        data = encode_webp(image := self.read_image(image_id))
        if len(data) >= source.size or image_hash(decode_image(data)) != image_hash(image):
            return 0  # noise does not compress; and what does not come back pixel for pixel is not stored
        self.storage.write(key := image_key(image_id, "webp"), data)
        self.storage.settle([key])
        self.storage.remove(source.key)
        return source.size - len(data)

    # Trajectories

    def write_trajectory(self, trajectory: Trajectory, *, replace: bool = False) -> bool:
        """Publish a trajectory whole, safe from power cuts; False if its name is there already and not to `replace`."""
        self._settle_images(trajectory.shown_images)
        key = trajectory_key(trajectory.trajectory_id)
        return self.storage.publish(key, pack_trajectory(trajectory), replace=replace)

    def _settle_images(self, image_ids: Iterable[str]) -> None:
        """An image may have been written by another process, a moment ago. All formats lie in one folder."""
        self.storage.settle({image_key(image_id) for image_id in image_ids})

    def read_trajectory(self, trajectory_id: str) -> Trajectory:
        """Return a stored trajectory.

        Raises:
            CorruptDataError: if it is missing or damaged.
        """
        key = trajectory_key(trajectory_id)
        try:
            return unpack_trajectory(self.storage.read(key))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
            raise CorruptDataError(self.storage.name(key), error) from error

    def remove_trajectory(self, trajectory_id: str) -> bool:
        """Remove a trajectory's files, not its screenshots; False without such files."""
        return self.storage.remove(trajectory_key(trajectory_id))

    # All of them

    def stored_trajectories(self) -> Iterator[tuple[str, Entry]]:
        """Yield (trajectory id, entry) of everything published, in no order."""
        for entry in self.storage.entries("trajectories"):
            parts = entry.key.split("/")
            if len(parts) == 3 and parts[2] == TRAJECTORY_FILE and not parts[1].endswith(PARTIAL):
                yield parts[1], entry

    def stored_images(self) -> Iterator[tuple[str, Entry]]:
        """Yield (hash, entry) of every screenshot's file, in no order."""
        for entry in self.storage.entries("images"):
            name = entry.key.rsplit("/", 1)[-1].partition(".")[0]
            if IMAGE_ID.fullmatch(name):
                yield name, entry

    def remove_leftovers(self, older_than_s: float = 3600.0) -> int:
        """Remove what killed processes left under temporary names; return how many there were."""
        return self.storage.remove_leftovers(older_than_s)

    def _image_bytes(self, image_id: str) -> tuple[str, bytes]:
        for format_name in ENCODERS:  # PNG first, see `find_image`
            key = image_key(image_id, format_name)
            try:
                return key, self.storage.read(key)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise CorruptDataError(self.storage.name(key), error) from error
        raise CorruptDataError(self.storage.name(image_key(image_id)), "there is no such file")

    def _refresh(self, image_id: str) -> bool:
        """Return whether an image is stored, and renew its file's time, so that no clean-up takes it for garbage."""
        if self._is_fresh(image_id):
            return True
        entry = self.find_image(image_id)
        if entry is None or entry.size == 0:
            return False
        if time.time() - entry.modified > FRESH_S:
            self.storage.touch(entry)
        self._remember(image_id)
        return True

    def _is_fresh(self, image_id: str) -> bool:
        return time.monotonic() - self._fresh_images.get(image_id, -math.inf) < FRESH_S

    def _remember(self, image_id: str) -> None:
        if len(self._fresh_images) >= KNOWN_IMAGES:
            self._fresh_images.clear()
        self._fresh_images[image_id] = time.monotonic()
