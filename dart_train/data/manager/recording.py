"""Recording: the rollouts' side of the data manager. They ask what to play, and hand in what was played.

Invariants:
    - A row exists only for a trajectory whose files are complete.
    - Recording the same trajectory again changes nothing; another one under its id is refused.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from dart_agent.episodes.trajectory import Trajectory
from dart_agent.episodes.trajectory_format import pack_trajectory
from dart_agent.evaluation.difficulty import known_rates
from dart_train.core.data_states import RolloutState
from dart_train.core.train_errors import InvalidTrajectoryError
from dart_train.data.curation import rules
from dart_train.data.curation.rollout_admission import LATEST_GROUPS, Backlog, capacity, usable_share
from dart_train.data.curation.rules import Plan, TaskSampling
from dart_train.data.curation.task_sampling import is_measured, retired_tasks, task_shares
from dart_train.data.groups import lease_rows, partial_groups, trajectory_rows
from dart_train.data.insight import serving, statistics
from dart_train.data.insight.statistics import TaskStats
from dart_train.data.manager.run_insight import Insight
from dart_train.data.manager.trajectory_check import check_images, checked_trajectory


class Kept(NamedTuple):
    """A trajectory whose files are stored; `known` where its rows are, too."""

    trajectory: Trajectory
    digest: str
    expected: int
    known: RolloutState | None


class Recording(Insight):
    """One run's data, for the processes that play episodes."""

    def record(
        self,
        trajectory: Trajectory,
        images: Mapping[str, NDArray[np.uint8] | bytes] | None = None,
        *,
        expected: int | None = None,
    ) -> RolloutState:
        """Store a trajectory: files first, then its rows in one transaction.

        The trajectory that completes a group decides it: ready to be leased, or rejected by a rule of curation.

        Args:
            trajectory: complete; its `run_id` must be the run's.
            images: screenshots of its prompts by `image_hash`, (height, width, 3) uint8, or PNGs made by
                `screenshots.pack`; those stored before may be left out.
            expected: trainable members that complete its group, by default `config.group_size`; the first one decides.

        Returns:
            Where the trajectory stands now.

        Raises:
            InvalidTrajectoryError: it breaks an invariant; nothing was stored.
            DuplicateTrajectoryError: another trajectory was recorded under its id; nothing was stored.
            DataError: disk or database failed; nothing was stored.
        """
        kept = self.keep(trajectory, images or {}, expected)
        return self.insert([kept])[0]

    def keep(
        self, trajectory: Trajectory, images: Mapping[str, NDArray[np.uint8] | bytes], expected: int | None = None
    ) -> Kept:
        """Store a trajectory's files, the first half of `record`; several threads may do so at once."""
        trajectory = self._checked(trajectory, images)
        digest = trajectory_rows.digest(pack_trajectory(trajectory))
        self.files.write_images(images)
        known = None
        if not self.files.write_trajectory(trajectory):
            known = self.read(trajectory_rows.find_state, trajectory.trajectory_id, digest)
            if known is None:  # left by a process killed before its transaction
                self.files.write_trajectory(trajectory, replace=True)
        return Kept(trajectory, digest, expected or self.config.group_size, known)

    def insert(self, kept: Sequence[Kept]) -> list[RolloutState]:
        """Insert the rows of trajectories whose files are kept, in one transaction; return where each stands."""

        def work(connection: sa.Connection) -> list[RolloutState]:
            return [
                one.known
                or trajectory_rows.insert_trajectory(
                    connection,
                    self.run_id,
                    one.trajectory,
                    split_dir=f"trajectories/{one.trajectory.trajectory_id}",
                    digest=one.digest,
                    expected=one.expected,
                    config=self.config,
                )
                for one in kept
            ]

        return self.store.write(work)

    def serving(self, replica: str, version: int | None) -> None:
        """Say that an engine replica serves a version from now on; None: that it serves none."""
        self.write(serving.serve, replica, version)

    def room(self, open_groups: int, unfinished: int | None = None) -> int | None:
        """Return how many more groups may be begun, 0 while the trainer is too far behind; None for any number.

        Of the begun groups `unfinished` members are not recorded yet; None for all of them.
        """
        playing = None if unfinished is None else unfinished / self.config.group_size

        def work(connection: sa.Connection) -> Backlog:
            ready = lease_rows.count_ready(connection, self.run_id, self.oldest_allowed(connection))[0]
            usable = usable_share(*lease_rows.count_usable(connection, self.run_id, LATEST_GROUPS))
            return Backlog(ready, lease_rows.count_leased(connection, self.run_id), open_groups, usable, playing)

        backlog, config = self.store.read(work), self.config
        room = capacity(
            backlog,
            batch_groups=config.batch_groups * config.leases_per_version,
            max_staleness=config.max_staleness,
            batches_ahead=config.batches_ahead,
            lease_groups=config.batch_groups,
        )
        return None if room is None else max(room, 0)

    def closed_groups(self, keys: Sequence[str]) -> list[str]:
        """Return the given groups that take no more members: they expired, or were closed with those they have."""
        return self.read(partial_groups.closed, keys)

    def plans(self, step_limits: Mapping[str, int | None]) -> dict[str, Plan]:
        """Return how the next group of each task is rolled out, from the tasks' records and general step limits."""
        config = self.config
        sampled = config.task_sampling is not TaskSampling.UNIFORM
        needed = config.dynamic_rollouts or config.dynamic_length or sampled or config.retire_above is not None
        records = self.read(statistics.saved_task_stats) if needed else {}
        rates = {task: records[task].success_rate if task in records else None for task in step_limits}
        measured = {
            task: record.success_rate for task, record in records.items() if is_measured(config, record.rollouts)
        }
        begun = {task: measured.get(task, self._known.get(task)) for task in step_limits}
        shares = task_shares(config, begun)
        tried = {task: (records[task].rollouts, rates[task]) for task in step_limits if task in records}
        retired = retired_tasks(config, tried, len(step_limits))
        cut_off = self._cut_off(records, step_limits) if config.dynamic_length and config.length_growth > 1.0 else {}
        return {
            task_id: rules.plan(
                config,
                limit,
                success_rate=rates[task_id],
                longest_success=records[task_id].longest_success if task_id in records else None,
                cut_off_at=cut_off.get(task_id),
                share=shares[task_id],
                admitted=task_id not in retired,
            )
            for task_id, limit in step_limits.items()
        }

    @functools.cached_property
    def _known(self) -> dict[str, float]:
        """Pass rates that were measured before the run."""
        return known_rates(self.config.difficulty, self.config.difficulty_of) if self.config.difficulty else {}

    def _cut_off(self, records: Mapping[str, TaskStats], step_limits: Mapping[str, int | None]) -> dict[str, int]:
        """Return where all latest attempts of a task were cut off, for the tasks that have a cap."""
        capped = [
            task for task, limit in step_limits.items() if limit and task in records and records[task].longest_success
        ]
        attempts = self.config.min_rollouts if self.config.dynamic_rollouts else self.config.group_size
        return self.read(statistics.cut_off_steps, capped, attempts)

    def _checked(self, trajectory: Trajectory, images: Mapping[str, NDArray[np.uint8] | bytes]) -> Trajectory:
        if trajectory.run_id != self.run_id:
            raise InvalidTrajectoryError(
                f"trajectory {trajectory.trajectory_id} is of run {trajectory.run_id!r}, not {self.run_id!r}"
            )
        trajectory = checked_trajectory(trajectory)
        stored = {name for name in trajectory.shown_images if name not in images and self.files.has_image(name)}
        check_images(trajectory, {*images, *stored})
        return trajectory
