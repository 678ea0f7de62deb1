"""Leasing: groups handed to a trainer for a limited time, to train on, keep, and hand in. Any trainer can use it.

```python
with Leasing.open(url, root, run_id) as data:
    data.resume("my-trainer", contained=serial_in_my_checkpoint)
    for leased in data.leases("my-trainer", groups=8):
        with leased:  # heartbeats in the background; given back if the block is left without a commit
            for group in leased:
                ...  # group.trajectories, group.rewards; data.load_image(hash) for their screenshots
            leased.commit(version)
```

Invariants:
    - A group is in one trainer's lease at a time. It is marked trained by `commit` only.
    - A trainer that dies stops sending heartbeats: its groups come back to the others after `ttl_s`.
    - Serials count a holder's leases. A trainer that settles each lease, by `commit` or `release`, before the next one,
      writes the last one it trained on into its checkpoint, and hands that to `Leasing.resume`, trains each group
      exactly once, whenever it was killed.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import sqlalchemy as sa

from dart_agent.episodes.trajectory import Trajectory
from dart_train.core.data_states import POLICY_SOURCES, Reason
from dart_train.core.train_errors import CorruptDataError, DataError, LeaseError
from dart_train.data.curation.rules import StalenessBy, staleness_version
from dart_train.data.files import shared_directories
from dart_train.data.groups import checkpoint_rows, lease_rows, resuming
from dart_train.data.groups.lease_rows import Taken, TakenGroup
from dart_train.data.groups.resuming import Resumed
from dart_train.data.manager.run_data import RunData
from dart_train.data.manager.run_insight import Insight

_log = logging.getLogger(__name__)

VERSIONS = "versions"
"""Folder of published versions in an object store."""

LEASE_POLL_S = 0.02  # how often a waiting lease looks again; a look is one small read


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts of one task and seed that are compared with one another.

    Attributes:
        injected: ids of those that come from the pool. Where such a one has no behaviour log-probabilities, its
            importance weight is 1.
    """

    key: str
    task_id: str
    trajectories: tuple[Trajectory, ...]
    injected: frozenset[str] = frozenset()
    staleness_by: StalenessBy = StalenessBy.OLDEST

    @property
    def rewards(self) -> tuple[float, ...]:
        """The reward of training of each trajectory."""
        return tuple(trajectory.training_reward for trajectory in self.trajectories)

    def version(self, trajectory: Trajectory) -> int | None:
        """Return the version that a member's staleness counts from; None for a success of the pool, which has none."""
        if trajectory.trajectory_id in self.injected or trajectory.source not in POLICY_SOURCES:
            return None
        return staleness_version(trajectory, self.staleness_by)


class LeasedGroups:
    """Groups that are the holder's until it commits, releases, or stops sending heartbeats. Iterates over them.

    A context manager as well: inside the block heartbeats are sent from a thread of its own, and a block that is left
    without `commit` (by an exception, say) gives the groups back.

    Args:
        serial: counts the leases of its holder, from 1; to be kept with the weights that were trained on it.
        ttl_s: seconds after the last heartbeat at which the groups come back to the others.

    Attributes:
        lost: set once a heartbeat found the lease to be over; training on is in vain.
    """

    def __init__(self, data: RunData, lease_id: str, serial: int, groups: tuple[Group, ...], ttl_s: float) -> None:
        self.lease_id = lease_id
        self.serial = serial
        self.groups = groups
        self.ttl_s = ttl_s
        self.lost = threading.Event()
        self._data = data
        self._settled = False
        self._left = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __enter__(self) -> Self:
        self._left.clear()
        self._thread = threading.Thread(target=self._beat, name="lease-heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._left.set()
        if self._thread is not None:
            self._thread.join()
        if not self._settled:
            self.release()

    def heartbeat(self) -> None:
        """Extend the lease by its time to live.

        Raises:
            LeaseError: if the lease has ended.
        """
        self._data.write(lease_rows.extend, self.lease_id)

    def commit(self, version: int) -> None:
        """Mark the groups trained; doing so twice changes nothing.

        Of an expired lease, the groups that no other holder has taken are committed; the others are counted as surplus.

        Args:
            version: version of the weights that were trained on them (the trainer's before the update). The first one
                published after that is written down as the one that resulted.

        Raises:
            LeaseError: the lease ran out and some of its groups were given to others.
        """
        with self._lock:  # no heartbeat after it
            self._settled = True
            surplus = self._data.write(lease_rows.commit, self.lease_id, version)
        if surplus:
            raise LeaseError(
                f"lease {self.lease_id} is expired: others have {surplus} of its groups, which are trained twice now "
                "and counted as surplus; send heartbeats more often than every ttl_s seconds, or ask for a longer ttl_s"
            )

    def release(self) -> None:
        """Give the groups back untrained; nothing happens to a lease that is over."""
        with self._lock:
            self._settled = True
            self._data.write(lease_rows.release, self.lease_id)

    def _beat(self) -> None:
        while not self._left.wait(self.ttl_s / 3):
            with self._lock:
                if self._settled:
                    return
                try:
                    self.heartbeat()
                except LeaseError as error:
                    _log.warning("the lease was lost while it was trained on: %s", error)
                    self.lost.set()
                    return
                except DataError as error:  # the database may be back before the lease runs out
                    _log.warning("no heartbeat, will try again: %s", error)


class Leasing(Insight):
    """One run's data, for a trainer."""

    def lease(
        self,
        groups: int,
        holder: str,
        *,
        ttl_s: float = 60.0,
        timeout_s: float = 0.0,
        at_least: int | None = None,
        weights: int | None = None,
    ) -> LeasedGroups | None:
        """Lease the oldest complete groups inside the staleness window.

        A group with a damaged member is rejected and left out, so fewer than asked for may come back.

        Args:
            groups: how many groups to lease.
            holder: name of the trainer, under which it also calls `resume`.
            ttl_s: seconds after the last heartbeat at which the groups come back to the others.
            timeout_s: seconds to wait for enough groups.
            at_least: take as few as this; `groups` by default.
            weights: version that will be trained, from which staleness counts where it is not published yet.

        Returns:
            The groups, or None if there are too few (`diagnose()` says why).
        """
        need = groups if at_least is None else at_least
        deadline = time.monotonic() + timeout_s
        while True:
            leased = self._try_lease(groups, max(need, 1), holder, ttl_s, weights)
            remaining = deadline - time.monotonic()
            if leased is not None or remaining <= 0:
                return leased
            time.sleep(min(LEASE_POLL_S, remaining))

    def leases(
        self,
        holder: str,
        *,
        groups: int,
        ttl_s: float = 60.0,
        stop: Callable[[], bool] = lambda: False,
        poll_s: float = 0.5,
        say_after_s: float = 15.0,
    ) -> Iterator[LeasedGroups]:
        """Yield lease after lease, waiting for data in between, until `stop` says so; see `lease`.

        It is asked before every lease, and every `poll_s` seconds while waiting; the log says every `say_after_s`
        seconds why nothing can be leased.
        """
        said = time.monotonic()
        while not stop():
            leased = self.lease(groups, holder, ttl_s=ttl_s, timeout_s=poll_s)
            if leased is not None:
                yield leased
                said = time.monotonic()
            elif time.monotonic() - said >= say_after_s:
                _log.info("waiting for data: %s", self.diagnose())
                said = time.monotonic()

    def resume(self, holder: str, contained: int | None, *, version: int | None = None) -> Resumed:
        """Settle the leases of a trainer's earlier life, so that nothing is trained twice or lost. For its start.

        A trainer saves the serial of the lease that it trained on last (`LeasedGroups.serial`) with its weights. When
        it restarts from them, regardless of what it was doing when it died, everything up to that serial is in the
        weights and is marked trained; everything after it is not, and can be leased again.

        Args:
            holder: name of the trainer.
            contained: that serial; 0 for weights that were trained on nothing; None: unknown, as with weights of
                another origin; then commits stay as they are.
            version: version written down for what is marked trained now; by default the newest.
        """
        return self.write(resuming.resume, holder, contained, version)

    def publish(self, version: int, path: str | Path, source: str = "training") -> None:
        """Say that a version can be read from a path: status COMPLETED. Doing so twice changes nothing.

        Where `data.files` is an object store, the version is put there first, for other nodes.

        Args:
            version: number of the version; never used before.
            path: a Hugging Face model directory, or a URL of one.
            source: how the weights came about: "initial", "warmup", "training", ...

        Raises:
            CheckpointError: nothing is at the path, or the version was published with another path.
        """
        if "://" not in str(path) and Path(path).is_dir():
            shared_directories.share(self.files.storage, VERSIONS, Path(path))
        self.write(checkpoint_rows.complete, version, self.place(path), source)

    def place(self, path: str | Path) -> str:
        """Return what the row of a version at a path says: where every node can read it."""
        return shared_directories.place(self.files.storage, VERSIONS, path)

    def retire(self, version: int, path: Path) -> None:
        """Mark a version as removed, and delete its copy for other nodes."""
        self.write(checkpoint_rows.deprecate, version)
        shared_directories.unshare(self.files.storage, VERSIONS, path.name)

    def _try_lease(self, groups: int, need: int, holder: str, ttl_s: float, weights: int | None) -> LeasedGroups | None:
        """Lease now or not at all. Each round that finds damage rejects a group, so the rounds come to an end."""
        while self.store.read(lambda c: lease_rows.may_take(c, self.run_id, self.oldest_allowed(c, weights), need)):
            lease_id = uuid.uuid4().hex  # chosen here, so that a transaction that is run again takes the same lease
            taken = self.store.write(lambda c: self._take(c, lease_id, groups, need, holder, ttl_s, weights))  # noqa: B023
            if taken is None:
                return None
            loaded = tuple(group for row in taken.groups if (group := self._load_group(row)) is not None)
            leased = LeasedGroups(self, taken.lease_id, taken.serial, loaded, ttl_s)
            if len(loaded) >= need:
                return leased
            leased.release()
        return None

    def _take(
        self,
        connection: sa.Connection,
        lease_id: str,
        groups: int,
        need: int,
        holder: str,
        ttl_s: float,
        weights: int | None,
    ) -> Taken | None:
        oldest = self.oldest_allowed(connection, weights)
        lease_rows.sweep(connection, self.run_id, oldest)
        return lease_rows.take(connection, self.run_id, lease_id, holder, groups, need, oldest, ttl_s)

    def _load_group(self, row: TakenGroup) -> Group | None:
        try:
            trajectories = tuple(self.load_whole(name) for name in (*row.trajectory_ids, *row.injected))
        except CorruptDataError as error:
            _log.error("group %s is left out: %s", row.key, error)
            self.store.write(lambda c: lease_rows.reject_group(c, row.group_id, Reason.CORRUPT))
            return None
        return Group(row.key, row.task_id, trajectories, frozenset(row.injected), self.config.staleness_by)
