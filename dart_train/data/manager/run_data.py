"""One run's database and files, opened: the common base of the data manager's faces.

Invariants:
    - Any number of processes and threads may have the same run open.
    - Rows are read and written by the functions of `groups`, `insight` and `curation`, each of which takes a connection
      and the run: `data.read(statistics.rollout_history)`, `data.write(checkpoint_rows.fail, version)`.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from dart_agent.episodes.trajectory import Trajectory
from dart_gym.utils.lru_cache import LRUCache
from dart_train.core.data_states import CheckpointStatus, RolloutState
from dart_train.data.curation.rules import CurationConfig, oldest_allowed
from dart_train.data.files import shared_directories
from dart_train.data.files.trajectory_files import AUTO, TrajectoryFiles
from dart_train.data.groups import checkpoint_rows, trajectory_rows
from dart_train.data.groups.checkpoint_rows import CheckpointRow
from dart_train.data.store.schema import run_state
from dart_train.data.store.sql_store import UNAVAILABLE_TIMEOUT_S, Store

IMAGE_CACHE_BYTES = 128 * 2**20
TRAJECTORY_CACHE = 512
P = ParamSpec("P")
T = TypeVar("T")


class RunData:
    """One run's data. Synchronous and thread-safe; a context manager that closes the database.

    Args:
        run_id: name of the run; several may share a database, each with a directory of its own.

    Attributes:
        copies: directories of this node with versions of the run; those that are fetched come into the last one.
    """

    def __init__(self, store: Store, files: TrajectoryFiles, run_id: str, config: CurationConfig | None = None) -> None:
        self.store = store
        self.files = files
        self.run_id = run_id
        self.copies: tuple[Path, ...] = (Path(tempfile.gettempdir()) / f"dart-versions-{os.getuid()}" / run_id,)
        self.config = config or CurationConfig()
        self._images: LRUCache[NDArray[np.uint8]] = LRUCache(IMAGE_CACHE_BYTES, lambda image: image.nbytes)
        self._trajectories: LRUCache[Trajectory] = LRUCache(TRAJECTORY_CACHE)

    @classmethod
    def open(
        cls,
        url: str,
        root: str | Path,
        run_id: str,
        *,
        config: CurationConfig | None = None,
        clock: Callable[[], float] | None = None,
        image_format: str = AUTO,
        unavailable_timeout_s: float = UNAVAILABLE_TIMEOUT_S,
    ) -> Self:
        """Open (and where needed make) the database and the data directory of a run.

        Args:
            url: `sqlite:////absolute/path.sqlite` or `mysql+pymysql://user:password@host/database`.
            root: directory of trajectories and screenshots, or an fsspec URL such as `s3://bucket/prefix`.
            run_id: name of the run; several may share a database, each with a directory of its own.
            config: the settings of curation; the defaults if None.
            clock: returns Unix time in seconds, for tests to turn; None for the database's own clock.
            image_format: file format of new screenshots: "png", "webp", or "auto", by their size.
            unavailable_timeout_s: seconds for which each call retries while a database server is away.

        Raises:
            DataError: the database or directory cannot be used; the message says why.
        """
        store = Store(url, unavailable_timeout_s=unavailable_timeout_s, clock=clock)
        return cls(store, TrajectoryFiles(root, image_format=image_format), run_id, config)

    def close(self) -> None:
        """Close the database."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, function: Callable[Concatenate[sa.Connection, str, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function of a connection, the run's name and these arguments finds in a snapshot."""
        return self.store.read(lambda connection: function(connection, self.run_id, *args, **kwargs))

    def write(self, function: Callable[Concatenate[sa.Connection, str, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have a function change rows of this run in a transaction; see `read`, and `Store.write` for its duties."""
        return self.store.write(lambda connection: function(connection, self.run_id, *args, **kwargs))

    def load_image(self, image_id: str) -> NDArray[np.uint8]:
        """A screenshot by its hash: (height, width, 3) uint8, read-only, shared. Raises `CorruptDataError`."""
        return self._images.get(image_id, self.files.read_image)

    def image_size(self, image_id: str) -> tuple[int, int]:
        """(height, width) of a screenshot by its hash, without its pixels if possible. Raises `CorruptDataError`."""
        return self.files.image_size(image_id)

    def load_trajectory(self, trajectory_id: str) -> Trajectory:
        """Return a trajectory by its id.

        Raises:
            CorruptDataError: if it is missing or damaged.
        """
        return self._trajectories.get(trajectory_id, self.files.read_trajectory)

    def load_whole(self, trajectory_id: str) -> Trajectory:
        """Return a trajectory by its id, if its screenshots are there, too; raises as `load_trajectory`."""
        trajectory = self.load_trajectory(trajectory_id)
        for step in trajectory.steps:
            self.files.check_images(step.image_hashes)
        return trajectory

    def trajectories(self, *, source: str | None = None, state: RolloutState | None = None) -> Iterator[Trajectory]:
        """Yield trajectories that have files, in the order of their recording; of one source or state where named."""
        for name in self.read(trajectory_rows.list_stored, source, state):
            yield self.files.read_trajectory(name)

    def checkpoints(self) -> list[CheckpointRow]:
        """Return all checkpoints, newest first."""
        return self.read(checkpoint_rows.list_checkpoints)

    def newest_checkpoint(self) -> CheckpointRow | None:
        """Return the newest version that can be read; None before the first."""
        rows = self.read(checkpoint_rows.list_checkpoints, CheckpointStatus.COMPLETED, limit=1)
        return rows[0] if rows else None

    def completed_checkpoints(self) -> list[CheckpointRow]:
        """Return all versions that were published whole, newest first."""
        return self.read(checkpoint_rows.list_checkpoints, CheckpointStatus.COMPLETED)

    def local_copy(self, path: str) -> str:
        """This node's directory of a version, fetched if need be. Raises `CheckpointError`, `DataError`."""
        return str(shared_directories.fetch(path, self.copies[-1], self.copies[:-1]))

    def localized(self, row: CheckpointRow) -> CheckpointRow:
        """The same with its directory on this node; raises as `local_copy`."""
        url = row.path if "://" in row.path else ""
        return replace(row, path=self.local_copy(row.path), url=url)

    def newest_here(self) -> CheckpointRow | None:
        """The newest version that can be read, with its directory on this node; raises as `local_copy`."""
        row = self.newest_checkpoint()
        return self.localized(row) if row is not None else None

    def fact(self, name: str, default: Any = None) -> Any:
        """Return the JSON value that `set_fact` kept under a name, or a default."""
        row = self.store.read(lambda c: c.execute(sa.select(run_state.c.value).where(self._named(name))).first())
        return default if row is None else row[0]

    def set_fact(self, name: str, value: Any) -> None:
        """Keep a JSON value under a name, over restarts."""

        def work(connection: sa.Connection) -> None:
            if connection.execute(run_state.update().where(self._named(name)).values(value=value)).rowcount == 0:
                connection.execute(run_state.insert().values(run_id=self.run_id, name=name, value=value))

        self.store.write(work)

    def _named(self, name: str) -> sa.ColumnElement[bool]:
        return (run_state.c.run_id == self.run_id) & (run_state.c.name == name)

    def oldest_allowed(self, connection: sa.Connection, weights: int | None = None) -> int | None:
        """Return the oldest weight version that may still be trained on; None if there is no limit."""
        newest = checkpoint_rows.newest_version(connection, self.run_id)
        if newest is not None and weights is not None:
            newest = max(newest, weights)
        return oldest_allowed(newest, self.config.max_staleness)
