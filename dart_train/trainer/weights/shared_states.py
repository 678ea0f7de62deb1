"""Trainer states in an object store, so that a trainer resumes on another node when its node is lost.

Invariants:
    - A fact of the run names the newest state, and is set only once all of that is in the store; the one before is
      removed after that.
    - If the ranks are on several nodes, each node stores the files that it wrote; a fetch gets all of them.
    - States are copied in the background, one at a time. One that cannot be put there costs nothing but the way back:
      the next one is tried.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from dart_gym.utils.durable_files import rename
from dart_train.core.train_errors import CheckpointError, DataError
from dart_train.data.files import shared_directories
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.background_write import BackgroundWrite

if TYPE_CHECKING:
    from dart_train.data.manager.run_data import RunData

FOLDER = "states"
NEWEST = "newest_state"
PART = "-node"
MOST_NODES = 1 << 10
_log = logging.getLogger(__name__)


class SharedStates:
    """The states of one trainer in the run's object store.

    Args:
        data: the run's, with an object store.
        beside: runs a function beside the caller.
    """

    def __init__(self, data: RunData, beside: Callable[[Callable[[], None]], Future[None]]) -> None:
        self._data, self._beside = data, beside
        self._putting = BackgroundWrite("state's copy in the store")

    def fetch(self, output_dir: Path) -> None:
        """Fetch the newest state, if it is newer than the local ones."""
        name = self._data.fact(NEWEST)
        here = checkpoint.resume_point(output_dir)
        if name is None or (here is not None and here.step >= int(name.rpartition("-")[2])):
            return
        storage, fetched = self._data.files.storage, output_dir / ".fetched"
        try:
            found, *parts = (
                shared_directories.fetch(f"{storage.where}/{FOLDER}/{one}", fetched, keep=MOST_NODES)
                for one in (name, *self._parts(name))
            )
        except CheckpointError as error:
            _log.error("the newest state cannot be used, training goes on from the newest version: %s", error)
            return
        for part in parts:
            shutil.copytree(part, found, copy_function=shutil.move, dirs_exist_ok=True)
            shutil.rmtree(part)
        rename(found, output_dir / name)

    def _parts(self, name: str) -> list[str]:
        """Return the files of a state in the store that the main rank's node did not write."""
        folders = {entry.key.split("/")[1] for entry in self._data.files.storage.entries(FOLDER)}
        return sorted(folder for folder in folders if folder.startswith(f"{name}{PART}"))

    def put_part(self, directory: Path, node: int) -> None:
        """Put into the store what another node than the main rank's wrote of a state; no state stays here."""
        part = directory.with_name(f"{directory.name}{PART}{node}")
        directory.rename(part)
        shared_directories.share(self._data.files.storage, FOLDER, part)
        for old in part.parent.glob("checkpoint-*"):  # this part, and the state that this life resumed from
            shutil.rmtree(old)

    def put(self, directory: Path) -> None:
        """Put a complete state into the store, in the background."""
        self.settle()
        self._putting.future = self._beside(lambda: self._put(directory))

    def _put(self, directory: Path) -> None:
        try:
            shared_directories.share(self._data.files.storage, FOLDER, directory)
            before = self._data.fact(NEWEST)
            self._data.set_fact(NEWEST, directory.name)
            if before not in (None, directory.name):
                for one in (before, *self._parts(before)):
                    shared_directories.unshare(self._data.files.storage, FOLDER, one)
        except (DataError, FileNotFoundError) as error:
            _log.error("%s is on this node alone: %s", directory, error)

    def settle(self) -> None:
        """Wait until what was put is there."""
        self._putting.settle()
