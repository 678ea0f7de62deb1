"""The data manager: the one way to a run's trajectories, groups, checkpoints and statistics.

Life of a trajectory: recorded -> leased -> trained, or expired (too old), rejected (no signal, broken, surplus), pooled
(demonstrations). Life of a group: open -> ready -> leased -> trained, or expired, rejected.

Invariants:
    - A row exists only for a trajectory whose files are complete.
    - Every change of state is one transaction; any number of processes may work on the same run.
    - Nothing is marked trained before the trainer says so, and a dead trainer's groups come back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from dart_train.data import checkpoints, curation, leases, records, statistics
from dart_train.data.cache import LRUCache
from dart_train.data.checkpoints import CheckpointRow
from dart_train.data.curation import Census, CurationConfig
from dart_train.data.files import TrajectoryFiles, image_hash
from dart_train.data.leases import Sweep
from dart_train.data.schema import CheckpointStatus, Reason, RolloutState, rollout_meta, run_state
from dart_train.data.statistics import Bucket, TaskStats, Throughput
from dart_train.data.store import Store
from dart_train.errors import CorruptDataError, InvalidTrajectoryError
from dart_train.trajectory import Trajectory

_log = logging.getLogger(__name__)

IMAGE_CACHE_BYTES = 128 * 2**20
TRAJECTORY_CACHE = 512
LEASE_POLL_S = 0.02  # how often a waiting lease looks again; a look is one small read


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts of one task and seed that are compared with one another.

    Attributes:
        key: their common `group_key`.
        task_id: their task.
        trajectories: in the order of their recording.
    """

    key: str
    task_id: str
    trajectories: tuple[Trajectory, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """The score of each trajectory."""
        return tuple(trajectory.reward or 0.0 for trajectory in self.trajectories)


@dataclass(frozen=True, slots=True)
class LeasedGroups:
    """Groups that are the holder's until it commits, releases, or stops sending heartbeats."""

    lease_id: str
    groups: tuple[Group, ...]


class DataManager:
    """One run's data. Synchronous and thread-safe.

    Args:
        store: the database.
        files: the data directory.
        run_id: the run.
        config: the switches of curation.
        clock: Unix time; all processes of a run must agree on it to well within a lease's time to live.
    """

    def __init__(
        self,
        store: Store,
        files: TrajectoryFiles,
        run_id: str,
        config: CurationConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store, self.files, self.run_id = store, files, run_id
        self.config = config or CurationConfig()
        self._clock = clock
        self._images: LRUCache[NDArray[np.uint8]] = LRUCache(IMAGE_CACHE_BYTES, lambda image: image.nbytes)
        self._trajectories: LRUCache[Trajectory] = LRUCache(TRAJECTORY_CACHE)
        self._stats_upto = 0

    @classmethod
    def open(
        cls,
        url: str,
        root: str | Path,
        run_id: str,
        *,
        config: CurationConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> DataManager:
        """Open (and where needed make) the database and the data directory of a run.

        Args:
            url: `sqlite:////absolute/path.sqlite` or `mysql+pymysql://user:password@host/database`.
            root: directory of trajectories and screenshots.
            run_id: the run; several may share a database, each with a directory of its own.
            config: the switches of curation.
            clock: Unix time.

        Raises:
            DataError: the database or directory cannot be used; the message says why.
        """
        return cls(Store(url), TrajectoryFiles(root), run_id, config, clock)

    def close(self) -> None:
        """Close the database."""
        self.store.close()

    def __enter__(self) -> DataManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Trajectories and screenshots

    image_hash = staticmethod(image_hash)

    def record(
        self,
        trajectory: Trajectory,
        images: Mapping[str, NDArray[np.uint8]] | None = None,
        *,
        expected: int | None = None,
    ) -> RolloutState:
        """Store a trajectory: files first, then its rows in one transaction.

        Recording the same trajectory again changes nothing. The trajectory that completes a group decides it: ready
        to be leased, or rejected when the rewards are all equal.

        Args:
            trajectory: complete; its `run_id` must be the manager's.
            images: the screenshots of its prompts by `image_hash`; those stored before may be left out.
            expected: trainable members that complete its group, by default `config.group_size`; the first one decides.

        Returns:
            Where the trajectory stands now.

        Raises:
            InvalidTrajectoryError: it breaks an invariant; nothing was stored.
            DataError: disk or database failed; nothing was stored.
        """
        self._check(trajectory, images or {})
        self.files.write_images(images or {})
        if not self.files.write_trajectory(trajectory):
            known = self.store.read(lambda c: records.find_state(c, self.run_id, trajectory.trajectory_id))
            if known is not None:
                return known
            self.files.write_trajectory(trajectory, replace=True)  # left by a process killed before its transaction
        return self.store.write(
            lambda connection: records.insert_trajectory(
                connection,
                trajectory,
                run_id=self.run_id,
                split_dir=f"trajectories/{trajectory.trajectory_id}",
                expected=expected or self.config.group_size,
                config=self.config,
                now=self._clock(),
            )
        )

    def load_image(self, image_id: str) -> NDArray[np.uint8]:
        """Return a screenshot, (H, W, 3) uint8, read-only and shared.

        Raises:
            CorruptDataError: missing or damaged.
        """
        return self._images.get(image_id, self.files.read_image)

    def load_trajectory(self, trajectory_id: str) -> Trajectory:
        """Return a trajectory.

        Raises:
            CorruptDataError: missing or damaged.
        """
        return self._trajectories.get(trajectory_id, self.files.read_trajectory)

    def trajectories(
        self,
        *,
        source: str | None = None,
        task_id: str | None = None,
        state: RolloutState | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[Trajectory]:
        """Yield stored trajectories, such as demonstrations with source "oracle"."""
        columns, order = rollout_meta.c, rollout_meta.c.rollout_id
        query = sa.select(columns.trajectory_id).where(columns.run_id == self.run_id)
        for column, value in ((columns.source, source), (columns.task_id, task_id), (columns.state, state)):
            if value is not None:
                query = query.where(column == str(value))
        query = query.order_by(order.desc() if newest_first else order).limit(limit)
        for trajectory_id in self.store.read(lambda c: list(c.execute(query).scalars())):
            yield self.files.read_trajectory(trajectory_id)

    # Leases

    def lease(
        self,
        groups: int,
        holder: str,
        *,
        ttl_s: float = 60.0,
        timeout_s: float = 0.0,
        at_least: int | None = None,
    ) -> LeasedGroups | None:
        """Lease the oldest complete groups inside the staleness window.

        A group with a damaged member is rejected and left out, so fewer than asked for may come back.

        Args:
            groups: how many.
            holder: who asks, for people and for `release_all`.
            ttl_s: the groups come back to the others this long after the last heartbeat.
            timeout_s: how long to wait for enough groups.
            at_least: take as few as this; `groups` by default.

        Returns:
            The groups, or None if there are too few (`why()` says why).
        """
        need = groups if at_least is None else at_least
        deadline = time.monotonic() + timeout_s
        while True:
            leased = self._try_lease(groups, max(need, 1), holder, ttl_s)
            remaining = deadline - time.monotonic()
            if leased is not None or remaining <= 0:
                return leased
            threading.Event().wait(min(LEASE_POLL_S, remaining))

    def heartbeat(self, lease_id: str) -> None:
        """Extend a lease by its time to live.

        Raises:
            LeaseError: it is over.
        """
        self.store.write(lambda c: leases.extend(c, self.run_id, lease_id, self._clock()))

    def commit(self, lease_id: str, version: int) -> None:
        """Mark a lease's trajectories trained; doing so twice changes nothing.

        Args:
            lease_id: the lease.
            version: of the weights that were trained on them (the trainer's version before the update).

        Raises:
            LeaseError: the lease ran out and its groups were given to others.
        """
        self.store.write(lambda c: leases.commit(c, self.run_id, lease_id, version))

    def release(self, lease_id: str) -> None:
        """Give a lease's groups back untrained; nothing happens to one that is over."""
        self.store.write(lambda c: leases.release(c, self.run_id, lease_id))

    def release_all(self, holder: str) -> int:
        """Give back what an earlier life of a holder left; return how many leases. For a trainer's start."""

        def work(connection: sa.Connection) -> int:
            held = leases.held_by(connection, self.run_id, holder)
            for lease_id in held:
                leases.release(connection, self.run_id, lease_id)
            return len(held)

        return self.store.write(work)

    def sweep(self) -> Sweep:
        """Give back dead holders' leases and expire groups that left the staleness window.

        Raises:
            DatabaseGoneError: the database file was deleted.
        """
        self.store.check_alive()
        return self.store.write(lambda c: leases.sweep(c, self.run_id, self._oldest_allowed(c), self._clock()))

    # Checkpoints

    def announce(self, version: int, path: str | Path, source: str = "training") -> None:
        """Say that a version is about to be written: status PENDING."""
        where = _absolute(path)
        self.store.write(lambda c: checkpoints.announce(c, self.run_id, version, where, source, self._clock()))

    def publish(self, version: int, path: str | Path, source: str = "training") -> None:
        """Say that a version can be read from a path: status COMPLETED. Doing so twice changes nothing.

        Raises:
            CheckpointError: nothing is at the path, or the version was published with another path.
        """
        where = _absolute(path)
        self.store.write(lambda c: checkpoints.complete(c, self.run_id, version, where, source, self._clock()))

    def fail_checkpoint(self, version: int) -> None:
        """Say that a version could not be written: status FAILED."""
        self.store.write(lambda c: checkpoints.fail(c, self.run_id, version))

    def deprecate_checkpoint(self, version: int) -> None:
        """Say that a version's files are going to be deleted: status DEPRECATED."""
        self.store.write(lambda c: checkpoints.deprecate(c, self.run_id, version))

    def newest_checkpoint(self) -> CheckpointRow | None:
        """Return the newest version that can be read; None before the first."""
        completed = CheckpointStatus.COMPLETED
        rows = self.store.read(lambda c: checkpoints.list_checkpoints(c, self.run_id, completed, limit=1))
        return rows[0] if rows else None

    def checkpoints(self) -> list[CheckpointRow]:
        """Return all checkpoints, newest first."""
        return self.store.read(lambda c: checkpoints.list_checkpoints(c, self.run_id))

    def next_version(self) -> int:
        """Return the version after every one that was ever announced, so that a resumed run goes on counting."""
        return self.store.read(lambda c: checkpoints.next_version(c, self.run_id))

    # Statistics and decisions

    def census(self) -> Census:
        """Return where every trajectory stands."""
        return self.store.read(lambda c: statistics.census(c, self.run_id, self._oldest_allowed(c)))

    def why(self) -> str:
        """Say why not more can be leased, in words."""
        return curation.explain(self.census())

    def counts(self) -> dict[str, int]:
        """Return the number of trajectories by state."""
        return self.store.read(lambda c: statistics.count_states(c, self.run_id))

    def ready(self) -> tuple[int, int]:
        """Return how many groups could be leased now, and how many trajectories they hold."""
        return self.store.read(lambda c: leases.count_ready(c, self.run_id, self._oldest_allowed(c)))

    def admit(self, running: int) -> bool:
        """Whether another group of episodes may start; False while the trainer is too far behind."""
        room = curation.capacity(
            self.ready()[1] if self.config.batches_ahead is not None else 0,
            running,
            batch_size=self.config.batch_groups * self.config.group_size,
            batches_ahead=self.config.batches_ahead,
        )
        return room is None or room > 0

    def task_stats(self) -> dict[str, TaskStats]:
        """Return every task's record, computed now."""
        window = self.config.success_window
        return {item.task_id: item for item in self.store.read(lambda c: statistics.task_stats(c, self.run_id, window))}

    def saved_task_stats(self) -> dict[str, TaskStats]:
        """Return every task's record as of the last `refresh_task_stats`: one small read."""
        return {item.task_id: item for item in self.store.read(lambda c: statistics.saved_task_stats(c, self.run_id))}

    def refresh_task_stats(self) -> int:
        """Bring the saved records up to date; return how many tasks had news since this manager's last call."""

        def work(connection: sa.Connection) -> tuple[int, int]:
            newest = statistics.newest_rollout_id(connection, self.run_id)
            tasks = statistics.tasks_after(connection, self.run_id, self._stats_upto)
            news = statistics.task_stats(connection, self.run_id, self.config.success_window, tasks) if tasks else []
            statistics.save_task_stats(connection, self.run_id, news, self._clock())
            return newest, len(tasks)

        self._stats_upto, count = self.store.write(work)
        return count

    def success_over_time(self, bucket_s: float, *, since: float = 0.0, task_id: str | None = None) -> list[Bucket]:
        """Return success in stretches of `bucket_s` seconds, oldest first."""
        return self.store.read(lambda c: statistics.success_over_time(c, self.run_id, bucket_s, since, task_id))

    def staleness_histogram(self) -> dict[int, int]:
        """Return how many trained trajectories were how many versions old."""
        return self.store.read(lambda c: statistics.staleness_histogram(c, self.run_id))

    def throughput(self, start: float, end: float, slots: int | None = None) -> Throughput:
        """Return utilisation of the desktops and actions per minute between two Unix times."""
        return self.store.read(lambda c: statistics.throughput(c, self.run_id, start, end, slots))

    # Facts of the run

    def set_fact(self, name: str, value: Any) -> None:
        """Keep a JSON value under a name, over restarts."""
        here = (run_state.c.run_id == self.run_id) & (run_state.c.name == name)

        def work(connection: sa.Connection) -> None:
            if connection.execute(run_state.update().where(here).values(value=value)).rowcount == 0:
                connection.execute(run_state.insert().values(run_id=self.run_id, name=name, value=value))

        self.store.write(work)

    def fact(self, name: str, default: Any = None) -> Any:
        """Return what `set_fact` kept."""
        here = (run_state.c.run_id == self.run_id) & (run_state.c.name == name)
        row = self.store.read(lambda c: c.execute(sa.select(run_state.c.value).where(here)).first())
        return default if row is None else row[0]

    # Parts

    def _oldest_allowed(self, connection: sa.Connection) -> int | None:
        newest = checkpoints.newest_version(connection, self.run_id)
        return curation.oldest_allowed(newest, self.config.max_staleness)

    def _check(self, trajectory: Trajectory, images: Mapping[str, NDArray[np.uint8]]) -> None:
        name = trajectory.trajectory_id
        if trajectory.run_id != self.run_id:
            raise InvalidTrajectoryError(f"trajectory {name} is of run {trajectory.run_id!r}, not {self.run_id!r}")
        if not 0 < len(trajectory.group_key) <= 191 and trajectory.source == records.POLICY_SOURCE:
            raise InvalidTrajectoryError(
                f"trajectory {name} has a group_key of {len(trajectory.group_key)} characters: use 1 to 191"
            )
        for index, step in enumerate(trajectory.steps):
            if trajectory.source == records.POLICY_SOURCE and len(step.logprobs) != len(step.sampled_ids):
                raise InvalidTrajectoryError(
                    f"step {index} of trajectory {name} has {len(step.sampled_ids)} sampled ids but "
                    f"{len(step.logprobs)} log-probabilities: the engine must return one for each"
                )
            for image_id in step.image_hashes:
                if image_id not in images and not self.files.has_image(image_id):
                    raise InvalidTrajectoryError(
                        f"step {index} of trajectory {name} shows image {image_id}, which is neither given nor stored"
                    )

    def _try_lease(self, groups: int, need: int, holder: str, ttl_s: float) -> LeasedGroups | None:
        if self.ready()[0] < need and not self._dead_leases():
            return None  # a look, so that waiting trainers do not take the writers' lock

        def work(connection: sa.Connection) -> tuple[str, list[tuple[int, str, str, list[str]]]] | None:
            oldest, now = self._oldest_allowed(connection), self._clock()
            leases.sweep(connection, self.run_id, oldest, now)
            taken = leases.take(connection, self.run_id, holder, groups, need, oldest, ttl_s, now)
            if taken is None:
                return None
            lease_id, rows = taken
            ids = leases.members(connection, [row.id for row in rows])
            return lease_id, [(row.id, row.group_key, row.task_id, ids[row.id]) for row in rows]

        found = self.store.write(work)
        if found is None:
            return None
        lease_id, rows = found
        loaded = [self._load_group(*row) for row in rows]
        return LeasedGroups(lease_id, tuple(group for group in loaded if group is not None))

    def _dead_leases(self) -> bool:
        return self.store.read(lambda c: leases.any_dead(c, self.run_id, self._clock()))

    def _load_group(self, group_id: int, key: str, task_id: str, trajectory_ids: list[str]) -> Group | None:
        try:
            return Group(key, task_id, tuple(self.load_trajectory(name) for name in trajectory_ids))
        except CorruptDataError as error:
            _log.error("group %s is left out: %s", key, error)
            self.store.write(lambda c: leases.reject_group(c, group_id, Reason.CORRUPT))
            return None


def _absolute(path: str | Path) -> str:
    return str(path) if "://" in str(path) else str(Path(path).absolute())
