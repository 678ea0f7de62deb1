"""What a trainer gets from the data manager: leased groups, to train on, keep, and hand in. Any trainer can use it.

```python
with DataManager.open(url, root, run_id) as data:
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
      writes the last one it trained on into its checkpoint, and hands that to `DataManager.resume`, trains each group
      exactly once, whenever it was killed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dart_train.core.train_errors import DataError, LeaseError
from dart_train.core.trajectory import Trajectory

if TYPE_CHECKING:
    from dart_train.data.manager.data_manager import DataManager

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts of one task and seed that are compared with one another.

    Attributes:
        key: their common `group_key`.
        task_id: their task.
        trajectories: in the order of their recording; those of the experience pool last.
        injected: ids of those that come from the pool. Where such a one has no behaviour log-probabilities, its
            importance weight is 1.
    """

    key: str
    task_id: str
    trajectories: tuple[Trajectory, ...]
    injected: frozenset[str] = frozenset()

    @property
    def rewards(self) -> tuple[float, ...]:
        """The score of each trajectory."""
        return tuple(trajectory.reward or 0.0 for trajectory in self.trajectories)


class LeasedGroups:
    """Groups that are the holder's until it commits, releases, or stops sending heartbeats. Iterates over them.

    A context manager as well: inside the block heartbeats are sent from a thread of its own, and a block that is left
    without `commit` (by an exception, say) gives the groups back.

    Args:
        data: where they were leased.
        lease_id: names the lease.
        serial: counts the leases of its holder, from 1; to be kept with the weights that were trained on it.
        groups: what was leased.
        ttl_s: the groups come back to the others this long after the last heartbeat.

    Attributes:
        lost: set once a heartbeat found the lease to be over; training on is in vain.
    """

    def __init__(self, data: DataManager, lease_id: str, serial: int, groups: tuple[Group, ...], ttl_s: float) -> None:
        self.lease_id, self.serial, self.groups, self.ttl_s = lease_id, serial, groups, ttl_s
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        if self._thread is not None:
            self._thread.join()
        if not self._settled:
            self.release()

    def heartbeat(self) -> None:
        """Extend the lease by its time to live.

        Raises:
            LeaseError: it is over.
        """
        self._data.heartbeat(self.lease_id)

    def commit(self, version: int) -> None:
        """Mark the groups trained; doing so twice changes nothing.

        Args:
            version: of the weights that were trained on them (the trainer's version before the update).

        Raises:
            LeaseError: the lease ran out and others have some of its groups; those are counted as surplus.
        """
        with self._lock:  # no heartbeat after it
            self._settled = True
            self._data.commit(self.lease_id, version)

    def release(self) -> None:
        """Give the groups back untrained; nothing happens to a lease that is over."""
        with self._lock:
            self._settled = True
            self._data.release(self.lease_id)

    def reject(self, group_key: str) -> None:
        """Take a group out for good because its files are damaged.

        Raises:
            LeaseError: the lease is over, or has no such group.
        """
        self._data.reject(self.lease_id, group_key)

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
