"""A run's data as it can be looked at: trajectories, checkpoints, statistics, and why a trainer gets nothing.

Invariants:
    - Nothing here changes anything, so any number of readers may watch a run.
    - Every answer comes from one snapshot of the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from dart_train.core.trajectory import Trajectory
from dart_train.data.curation import rules
from dart_train.data.curation.rollout_admission import Admission, Backlog, admission, crowded
from dart_train.data.curation.rules import Census, CurationConfig, Plan, TaskSampling
from dart_train.data.curation.task_sampling import task_shares
from dart_train.data.files.lru_cache import LRUCache
from dart_train.data.files.trajectory_files import TrajectoryFiles
from dart_train.data.groups import checkpoint_rows, leases
from dart_train.data.groups.checkpoint_rows import CheckpointRow
from dart_train.data.insight import serving, statistics, status
from dart_train.data.insight.diagnose import explain
from dart_train.data.insight.serving import VersionLife
from dart_train.data.insight.statistics import Bucket, TaskStats, Throughput
from dart_train.data.insight.status import Status
from dart_train.data.store.schema import CheckpointStatus, RolloutState, rollout_meta, rollout_run, run_state
from dart_train.data.store.sql_store import UNAVAILABLE_TIMEOUT_S, Store

IMAGE_CACHE_BYTES = 128 * 2**20
TRAJECTORY_CACHE = 512


class RunReader:
    """One run's data, to look at. Synchronous and thread-safe.

    Args:
        store: the database.
        files: the data directory.
        run_id: the run.
        config: the switches of curation.
        clock: Unix time for tests to turn; None for the database's own, which all machines of a run share.
    """

    def __init__(
        self,
        store: Store,
        files: TrajectoryFiles,
        run_id: str,
        config: CurationConfig | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.store, self.files, self.run_id = store, files, run_id
        self.config = config or CurationConfig()
        self._clock = clock
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
        image_format: str = "png",
        unavailable_timeout_s: float = UNAVAILABLE_TIMEOUT_S,
    ) -> Self:
        """Open (and where needed make) the database and the data directory of a run.

        Args:
            url: `sqlite:////absolute/path.sqlite` or `mysql+pymysql://user:password@host/database`.
            root: directory of trajectories and screenshots, or an fsspec URL such as `s3://bucket/prefix`.
            run_id: the run; several may share a database, each with a directory of its own.
            config: the switches of curation.
            clock: Unix time for tests to turn; None for the database's own.
            image_format: of new screenshots, "png" or "webp".
            unavailable_timeout_s: how long each call goes on trying while a database server is away.

        Raises:
            DataError: the database or directory cannot be used; the message says why.
        """
        return cls(
            Store(url, unavailable_timeout_s=unavailable_timeout_s),
            TrajectoryFiles(root, image_format=image_format),
            run_id,
            config,
            clock,
        )

    def close(self) -> None:
        """Close the database."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Trajectories and screenshots

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
        run = rollout_run.c
        query = (
            sa.select(columns.trajectory_id)
            .join_from(rollout_meta, rollout_run, run.id == columns.rollout_id)
            .where(columns.run_id == self.run_id, run.split_dir.is_not(None))  # else retention removed the files
        )
        for column, value in ((columns.source, source), (columns.task_id, task_id), (columns.state, state)):
            if value is not None:
                query = query.where(column == str(value))
        query = query.order_by(order.desc() if newest_first else order).limit(limit)
        for trajectory_id in self.store.read(lambda c: list(c.execute(query).scalars())):
            yield self.files.read_trajectory(trajectory_id)

    # Checkpoints

    def newest_checkpoint(self) -> CheckpointRow | None:
        """Return the newest version that can be read; None before the first."""
        completed = CheckpointStatus.COMPLETED
        rows = self.store.read(lambda c: checkpoint_rows.list_checkpoints(c, self.run_id, completed, limit=1))
        return rows[0] if rows else None

    def checkpoints(self) -> list[CheckpointRow]:
        """Return all checkpoints, newest first."""
        return self.store.read(lambda c: checkpoint_rows.list_checkpoints(c, self.run_id))

    def next_version(self) -> int:
        """Return the version after every one that was ever announced, so that a resumed run goes on counting."""
        return self.store.read(lambda c: checkpoint_rows.next_version(c, self.run_id))

    def serving(self) -> dict[str, int]:
        """Return which version each engine replica serves now."""
        return self.store.read(lambda c: serving.serving_now(c, self.run_id))

    def versions(self) -> list[VersionLife]:
        """Return the lives of all versions, newest first."""
        return self.store.read(lambda c: serving.version_lives(c, self.run_id))

    # Statistics and decisions

    def census(self) -> Census:
        """Return where every trajectory stands."""
        return self.store.read(lambda c: statistics.census(c, self.run_id, self._oldest_allowed(c)))

    def why(self, asked: int | None = None) -> str:
        """Say why not more can be leased, in words, with the values that were seen.

        Args:
            asked: groups that the waiting lease asks for.
        """

        def work(connection: sa.Connection) -> str:
            oldest = self._oldest_allowed(connection)
            evidence = status.gather_evidence(connection, self.run_id, oldest, asked)
            return explain(statistics.census(connection, self.run_id, oldest), evidence)

        return self.store.read(work)

    def figures(self) -> tuple[Census, dict[str, Any]]:
        """Return where every trajectory stands, and what else a line of metrics has, of one snapshot."""

        def work(connection: sa.Connection) -> tuple[Census, dict[str, Any]]:
            newest = checkpoint_rows.newest_version(connection, self.run_id)
            oldest, now = self._oldest_allowed(connection), self._now(connection)
            census = statistics.census(connection, self.run_id, oldest)
            return census, status.figures_of(connection, self.run_id, census, newest, oldest, now)

        return self.store.read(work)

    def status(self) -> Status:
        """Return how everything stands, as one snapshot."""
        config = self.config
        return self.store.read(
            lambda c: status.status_of(c, self.run_id, config.max_staleness, config.success_window, self._now(c))
        )

    def counts(self) -> dict[str, int]:
        """Return the number of trajectories by state."""
        return self.store.read(lambda c: statistics.count_states(c, self.run_id))

    def ready(self) -> tuple[int, int]:
        """Return how many groups could be leased now, and how many trajectories they hold."""
        return self.store.read(lambda c: leases.count_ready(c, self.run_id, self._oldest_allowed(c)))

    def admission(self, running: int, task_id: str | None = None) -> Admission:
        """Whether another group of episodes may start, and if not, why.

        Args:
            running: rollouts of begun groups that are not recorded yet.
            task_id: of the group; None: whether any may.
        """
        config = self.config
        backlog = self.store.read(lambda c: self._backlog(c, running, task_id))
        return admission(
            backlog,
            batch_size=self._batch_size,
            max_staleness=config.max_staleness,
            batches_ahead=config.batches_ahead,
            task_groups_ahead=config.task_groups_ahead if task_id is not None else None,
        )

    def admit(self, running: int, task_id: str | None = None) -> bool:
        """Whether another group of episodes may start; False while the trainer is too far behind."""
        return bool(self.admission(running, task_id))

    def plans(self, step_limits: Mapping[str, int | None]) -> dict[str, Plan]:
        """Return how the next group of each task is to be rolled out, from the tasks' records.

        Args:
            step_limits: general step limit by task id; None for the task's own.
        """
        config = self.config
        sampled = config.task_sampling is not TaskSampling.UNIFORM
        records = self.saved_task_stats() if config.dynamic_rollouts or config.dynamic_length or sampled else {}
        shares = task_shares(
            config, {task: records[task].success_rate if task in records else None for task in step_limits}
        )
        refused = self._crowded_tasks()
        cut_off = self._cut_off(records, step_limits) if config.dynamic_length and config.length_growth > 1.0 else {}
        return {
            task_id: rules.plan(
                config,
                limit,
                success_rate=records[task_id].success_rate if task_id in records else None,
                longest_success=records[task_id].longest_success if task_id in records else None,
                cut_off_at=cut_off.get(task_id),
                share=shares[task_id],
                admitted=task_id not in refused,
            )
            for task_id, limit in step_limits.items()
        }

    def _crowded_tasks(self) -> set[str]:
        """Return the tasks of which so much waits that another group of them is not admitted."""
        limit = self.config.task_groups_ahead
        if limit is None:
            return set()
        waiting = self.store.read(lambda c: leases.count_ready_by_task(c, self.run_id, self._oldest_allowed(c)))
        ready = sum(trajectories for _, trajectories in waiting.values())
        return {
            task_id
            for task_id, (groups, _) in waiting.items()
            if crowded(Backlog(ready, 0, 0, groups), batch_size=self._batch_size, task_groups_ahead=limit)
        }

    def _cut_off(self, records: Mapping[str, TaskStats], step_limits: Mapping[str, int | None]) -> dict[str, int]:
        """Return where all latest attempts of a task were cut off, for the tasks that have a cap."""
        capped = [
            task for task, limit in step_limits.items() if limit and task in records and records[task].longest_success
        ]
        attempts = self.config.min_rollouts if self.config.dynamic_rollouts else self.config.group_size
        return self.store.read(lambda c: statistics.cut_off_steps(c, self.run_id, capped, attempts))

    def task_stats(self) -> dict[str, TaskStats]:
        """Return every task's record, computed now."""
        window = self.config.success_window
        return {item.task_id: item for item in self.store.read(lambda c: statistics.task_stats(c, self.run_id, window))}

    def saved_task_stats(self) -> dict[str, TaskStats]:
        """Return every task's record as of the last `refresh_task_stats`: one small read."""
        return {item.task_id: item for item in self.store.read(lambda c: statistics.saved_task_stats(c, self.run_id))}

    def success_over_time(self, bucket_s: float, *, since: float = 0.0, task_id: str | None = None) -> list[Bucket]:
        """Return success in stretches of `bucket_s` seconds, oldest first."""
        return self.store.read(lambda c: statistics.success_over_time(c, self.run_id, bucket_s, since, task_id))

    def reward_history(self) -> list[tuple[str, float]]:
        """Return (task id, reward) of every scored rollout of the policy, in the order of recording."""
        return self.store.read(lambda c: statistics.reward_history(c, self.run_id))

    def staleness_histogram(self) -> dict[int, int]:
        """Return how many trained trajectories were how many versions old."""
        return self.store.read(lambda c: statistics.staleness_histogram(c, self.run_id))

    def throughput(self, start: float, end: float, slots: int | None = None) -> Throughput:
        """Return utilisation of the desktops and actions per minute between two Unix times."""
        return self.store.read(lambda c: statistics.throughput(c, self.run_id, start, end, slots))

    def fact(self, name: str, default: Any = None) -> Any:
        """Return what `set_fact` kept."""
        here = (run_state.c.run_id == self.run_id) & (run_state.c.name == name)
        row = self.store.read(lambda c: c.execute(sa.select(run_state.c.value).where(here)).first())
        return default if row is None else row[0]

    def surplus(self) -> int:
        """Return how many groups were trained twice, because a trainer lost its lease and went on."""
        return self.store.read(lambda c: leases.count_surplus(c, self.run_id))

    @property
    def _batch_size(self) -> int:
        return self.config.batch_groups * self.config.group_size

    def _backlog(self, connection: sa.Connection, running: int, task_id: str | None) -> Backlog:
        oldest = self._oldest_allowed(connection)
        return Backlog(
            ready=leases.count_ready(connection, self.run_id, oldest)[1],
            leased=leases.count_leased(connection, self.run_id),
            running=running,
            task_ready=0 if task_id is None else leases.count_ready(connection, self.run_id, oldest, task_id)[0],
        )

    def _now(self, connection: sa.Connection) -> float:
        return self.store.now(connection) if self._clock is None else self._clock()

    def _oldest_allowed(self, connection: sa.Connection) -> int | None:
        newest = checkpoint_rows.newest_version(connection, self.run_id)
        return rules.oldest_allowed(newest, self.config.max_staleness)
