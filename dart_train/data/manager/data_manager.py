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
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from dart_train.core.train_errors import CorruptDataError, InvalidTrajectoryError, LeaseError
from dart_train.core.trajectory import Trajectory
from dart_train.data.curation import leftovers
from dart_train.data.files.trajectory_files import image_hash, pack_trajectory
from dart_train.data.groups import checkpoint_rows, leases, resuming, trajectory_rows
from dart_train.data.groups.leases import Sweep, Taken, TakenGroup
from dart_train.data.groups.resuming import Resumed
from dart_train.data.insight import serving, statistics
from dart_train.data.manager.leased_groups import Group, LeasedGroups
from dart_train.data.manager.run_reader import RunReader
from dart_train.data.store import database_locks
from dart_train.data.store.schema import Reason, RolloutState, run_state

_log = logging.getLogger(__name__)

LEASE_POLL_S = 0.02  # how often a waiting lease looks again; a look is one small read


class DataManager(RunReader):
    """One run's data, to look at and to change. Synchronous and thread-safe.

    Args:
        store: the database.
        files: the data directory.
        run_id: the run.
        config: the switches of curation.
        clock: Unix time for tests to turn; None for the database's own, which all machines of a run share.
    """

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
            DuplicateTrajectoryError: another trajectory was recorded under its id; nothing was stored.
            DataError: disk or database failed; nothing was stored.
        """
        self._check(trajectory, images or {})
        digest = trajectory_rows.digest(pack_trajectory(trajectory))
        name = trajectory.trajectory_id
        self.files.write_images(images or {})
        if not self.files.write_trajectory(trajectory):
            known = self.store.read(lambda c: trajectory_rows.find_state(c, self.run_id, name, digest))
            if known is not None:
                return known
            self.files.write_trajectory(trajectory, replace=True)  # left by a process killed before its transaction
        return self.store.write(
            lambda connection: trajectory_rows.insert_trajectory(
                connection,
                trajectory,
                run_id=self.run_id,
                split_dir=f"trajectories/{name}",
                digest=digest,
                expected=expected or self.config.group_size,
                config=self.config,
                now=None if self._clock is None else self._clock(),
            )
        )

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

    def leases(
        self,
        holder: str,
        *,
        groups: int,
        at_least: int | None = None,
        ttl_s: float = 60.0,
        stop: Callable[[], bool] = lambda: False,
        poll_s: float = 0.5,
        say_after_s: float = 15.0,
    ) -> Iterator[LeasedGroups]:
        """Yield lease after lease, waiting for data in between, until told to stop. See `leased_groups`.

        While it waits, the log says every `say_after_s` seconds why nothing can be leased.

        Args:
            holder: who asks.
            groups: how many groups each lease asks for.
            at_least: take as few as this; `groups` by default.
            ttl_s: time to live of a lease without heartbeats.
            stop: asked before every lease, and every `poll_s` seconds while waiting.
            poll_s: see `stop`.
            say_after_s: see above.
        """
        said = time.monotonic()
        while not stop():
            leased = self.lease(groups, holder, ttl_s=ttl_s, timeout_s=poll_s, at_least=at_least)
            if leased is not None:
                yield leased
                said = time.monotonic()
            elif time.monotonic() - said >= say_after_s:
                _log.info("waiting for data: %s", self.why())
                said = time.monotonic()

    def heartbeat(self, lease_id: str) -> None:
        """Extend a lease by its time to live.

        Raises:
            LeaseError: it is over.
        """
        self.store.write(lambda c: leases.extend(c, self.run_id, lease_id, self._now(c)))

    def commit(self, lease_id: str, version: int) -> None:
        """Mark a lease's trajectories trained; doing so twice changes nothing.

        A lease that ran out is committed as far as nobody else has its groups; the others are counted (`surplus()`).

        Args:
            lease_id: the lease.
            version: of the weights that were trained on them (the trainer's version before the update). The first
                version published after that is written down as the one that resulted.

        Raises:
            LeaseError: the lease ran out and some of its groups were given to others.
        """
        surplus = self.store.write(lambda c: leases.commit(c, self.run_id, lease_id, version))
        if surplus:
            raise LeaseError(
                f"lease {lease_id} is expired: others have {surplus} of its groups, which are trained twice now and "
                "counted as surplus; send heartbeats more often than every ttl_s seconds, or ask for a longer ttl_s"
            )

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

    def resume(self, holder: str, contained: int | None, *, version: int | None = None) -> Resumed:
        """Settle the leases of a trainer's earlier life, so that nothing is trained twice or lost. For its start.

        A trainer saves the serial of the lease that it trained on last (`LeasedGroups.serial`) with its weights. When
        it begins again from them, whatever it was doing when it died, everything up to that serial is in the weights
        and is marked trained; everything after it is not, and can be leased again.

        Args:
            holder: the trainer.
            contained: that serial; 0 for weights that were trained on nothing; None: unknown, as with weights of
                another origin; then commits stay as they are.
            version: written down for what is marked trained now; by default the newest.
        """

        def work(connection: sa.Connection) -> Resumed:
            newest = checkpoint_rows.newest_version(connection, self.run_id) or 0
            chosen = newest if version is None else version
            return resuming.resume(connection, self.run_id, holder, contained, chosen)

        return self.store.write(work)

    def reject(self, lease_id: str, group_key: str) -> None:
        """Take a group out of a lease for good because its files are damaged.

        Raises:
            LeaseError: the lease is over, or has no such group.
        """
        self.store.write(lambda c: leases.reject_leased(c, self.run_id, lease_id, group_key, Reason.CORRUPT))

    def sweep(self) -> Sweep:
        """Give back dead holders' leases and expire groups that left the staleness window.

        Raises:
            DatabaseGoneError: the database file was deleted.
        """
        self.store.check_alive()
        total = Sweep()
        while True:  # in small transactions, so that nobody waits long for a large one
            part = self.store.write(lambda c: leases.sweep(c, self.run_id, self._oldest_allowed(c), self._now(c)))
            total += part
            if part.expired_groups < leases.SWEEP_GROUPS:
                return total

    # Checkpoints

    def announce(self, version: int, path: str | Path, source: str = "training") -> None:
        """Say that a version is about to be written: status PENDING."""
        where = _absolute(path)
        self.store.write(lambda c: checkpoint_rows.announce(c, self.run_id, version, where, source, self._now(c)))

    def begin_checkpoint(self, version: int) -> None:
        """Say that an announced version is being written: status RUNNING."""
        self.store.write(lambda c: checkpoint_rows.begin(c, self.run_id, version))

    def publish(self, version: int, path: str | Path, source: str = "training") -> None:
        """Say that a version can be read from a path: status COMPLETED. Doing so twice changes nothing.

        Raises:
            CheckpointError: nothing is at the path, or the version was published with another path.
        """
        where = _absolute(path)
        self.store.write(lambda c: checkpoint_rows.complete(c, self.run_id, version, where, source, self._now(c)))

    def fail_checkpoint(self, version: int) -> None:
        """Say that a version could not be written: status FAILED."""
        self.store.write(lambda c: checkpoint_rows.fail(c, self.run_id, version))

    def deprecate_checkpoint(self, version: int) -> None:
        """Say that a version's files are going to be deleted: status DEPRECATED."""
        self.store.write(lambda c: checkpoint_rows.deprecate(c, self.run_id, version, self._now(c)))

    def serve(self, replica: str, version: int | None) -> None:
        """Say that an engine replica serves a version from now on; None: that it serves none."""
        self.store.write(lambda c: serving.serve(c, self.run_id, replica, version, self._now(c)))

    # Locks

    def take_lock(self, name: str, holder: str, ttl_s: float) -> str:
        """Take a lock of the database, or hold it for longer; returns who has it now. See `data.locks`.

        Args:
            name: what it guards, at most `locks.LONGEST_NAME` characters.
            holder: who wants it; unique.
            ttl_s: it is over so long after it was last taken.
        """
        return self.store.write(lambda c: database_locks.take(c, name, holder, ttl_s, self._now(c)))

    def give_back_lock(self, name: str, holder: str) -> None:
        """Let a lock go, if it is still the holder's."""
        self.store.write(lambda c: database_locks.give_back(c, name, holder))

    # What others look at

    def refresh_task_stats(self) -> int:
        """Bring the saved records of tasks up to date; return how many tasks had news."""
        window = self.config.success_window
        return self.store.write(lambda c: statistics.refresh_task_stats(c, self.run_id, window, self._now(c)))

    def replay_leftovers(self) -> int:
        """Make groups of trajectories that no group can use as it is; return how many. See `data.leftovers`."""
        config = self.config
        plans = self.plans(dict.fromkeys(self.saved_task_stats()))
        full = config.select_rollouts or config.group_size

        def size_of(task_id: str) -> int:
            return min(full, plans[task_id].group_size) if task_id in plans else full

        def work(connection: sa.Connection) -> int:
            oldest, now = self._oldest_allowed(connection), self._now(connection)
            since = now - config.leftover_after_s
            return leftovers.replay(connection, self.run_id, size_of, oldest=oldest, waited_since=since, now=now)

        return self.store.write(work)

    def set_fact(self, name: str, value: Any) -> None:
        """Keep a JSON value under a name, over restarts."""
        here = (run_state.c.run_id == self.run_id) & (run_state.c.name == name)

        def work(connection: sa.Connection) -> None:
            if connection.execute(run_state.update().where(here).values(value=value)).rowcount == 0:
                connection.execute(run_state.insert().values(run_id=self.run_id, name=name, value=value))

        self.store.write(work)

    # Parts

    def _check(self, trajectory: Trajectory, images: Mapping[str, NDArray[np.uint8]]) -> None:
        name = trajectory.trajectory_id
        if trajectory.run_id != self.run_id:
            raise InvalidTrajectoryError(f"trajectory {name} is of run {trajectory.run_id!r}, not {self.run_id!r}")
        if not 0 < len(trajectory.group_key) <= 191 and trajectory.source == trajectory_rows.POLICY_SOURCE:
            raise InvalidTrajectoryError(
                f"trajectory {name} has a group_key of {len(trajectory.group_key)} characters: use 1 to 191"
            )
        for index, step in enumerate(trajectory.steps):
            if trajectory.source == trajectory_rows.POLICY_SOURCE and len(step.logprobs) != len(step.response_ids):
                raise InvalidTrajectoryError(
                    f"step {index} of trajectory {name} has {len(step.response_ids)} sampled ids but "
                    f"{len(step.logprobs)} log-probabilities: the engine must return one for each"
                )
            for image_id in step.image_hashes:
                if image_id not in images and not self.files.has_image(image_id):
                    raise InvalidTrajectoryError(
                        f"step {index} of trajectory {name} shows image {image_id}, which is neither given nor stored"
                    )

    def _try_lease(self, groups: int, need: int, holder: str, ttl_s: float) -> LeasedGroups | None:
        """Lease now or not at all. Each round that finds damage rejects a group, so the rounds come to an end."""
        while self._may_lease(need):
            lease_id = uuid.uuid4().hex  # chosen here, so that a transaction that is run again takes the same lease
            taken = self.store.write(lambda c: self._take(c, lease_id, groups, need, holder, ttl_s))  # noqa: B023
            if taken is None:
                return None
            loaded = tuple(group for row in taken.groups if (group := self._load_group(row)) is not None)
            if len(loaded) >= need:
                return LeasedGroups(self, taken.lease_id, taken.serial, loaded, ttl_s)
            self.release(taken.lease_id)
        return None

    def _may_lease(self, need: int) -> bool:
        """Look whether a lease could succeed, so that waiting trainers do not take the writers' lock."""

        def work(connection: sa.Connection) -> bool:
            oldest = self._oldest_allowed(connection)
            return leases.any_ready(connection, self.run_id, oldest, need) or leases.any_dead(
                connection, self.run_id, self._now(connection)
            )

        return self.store.read(work)

    def _take(
        self, connection: sa.Connection, lease_id: str, groups: int, need: int, holder: str, ttl_s: float
    ) -> Taken | None:
        oldest, now = self._oldest_allowed(connection), self._now(connection)
        leases.sweep(connection, self.run_id, oldest, now)
        return leases.take(connection, self.run_id, lease_id, holder, groups, need, oldest, ttl_s, now)

    def _load_group(self, row: TakenGroup) -> Group | None:
        try:
            trajectories = tuple(self.load_trajectory(name) for name in (*row.trajectory_ids, *row.injected))
            for trajectory in trajectories:
                for step in trajectory.steps:
                    self.files.check_images(step.image_hashes)
        except CorruptDataError as error:
            _log.error("group %s is left out: %s", row.key, error)
            self.store.write(lambda c: leases.reject_group(c, row.group_id, Reason.CORRUPT))
            return None
        return Group(row.key, row.task_id, trajectories, frozenset(row.injected))


def _absolute(path: str | Path) -> str:
    return str(path) if "://" in str(path) else str(Path(path).absolute())
