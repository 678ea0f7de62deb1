"""WeightSync: loads newly published checkpoints into the replicas, a few at a time, while the others go on serving.

Invariants:
    - The newest checkpoint is looked up before each single update, so a newer one supersedes all updates that have not
      begun.
    - At most `updates_at_once` replicas are updated at any time. The last serving replica is not updated while another
      one may come back within `ALONE_S`; after that, stale rollouts cost more than a moment without an engine.
    - Services that share a replica update it one at a time (`locks`); if another service has the lock, it is retried.
    - A version is tried on one replica first; the others follow once that one is known to serve it.
    - An update counts only if the replica itself reports the version and shows its fingerprint. A replica that fails is
      taken out of service and restarted with the last verified weights. A checkpoint is skipped with a logged reason if
      it fails `MAX_FAILURES` times, its files are incomplete, or its tensors do not fit the model.
    - Nothing here ends the service: a database that is away is asked again.
    - A version in the trainer's memory comes before those in files. If it cannot be read there, the replica stays in
      service with its old weights, and the newest files are next. Replicas start from files alone. A replica never goes
      back from a version in memory to older files.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from dart_agent.engines.base.engine import EngineBusy, EngineError, UpdateNotBegun
from dart_gym.core.task_group import TaskGroup
from dart_train.core.availability import Availability
from dart_train.core.train_errors import DataError
from dart_train.data.groups.checkpoint_rows import CheckpointRow
from dart_train.rollout.fleet.engine_pool import EnginePool
from dart_train.rollout.fleet.replica import UNKNOWN, Replica, ReplicaState, Wakeup, Weights
from dart_train.rollout.fleet.weight_files import why_unfit, why_unusable

_log = logging.getLogger(__name__)
MAX_FAILURES = 2
HOPELESS_FAILURES = 3
ALONE_S = 10.0


def next_stale(
    replicas: Sequence[Replica],
    version: int,
    *,
    at_once: int = 1,
    proven: bool = True,
    begun: Collection[str] = (),
    spare_last: bool = True,
) -> list[Replica]:
    """Return the replicas whose update to a version may begin now, those with the oldest weights first. Pure.

    Until one replica is `proven` to serve the version, only one is updated. If `spare_last`, the only serving replica
    waits for another one to come back.
    """
    ready = [replica for replica in replicas if replica.state is ReplicaState.READY and replica.name not in begun]
    stale = sorted((r for r in ready if r.version != version), key=lambda replica: replica.version)
    under_way = [r for r in replicas if r.name in begun or r.state in (ReplicaState.UPDATING, ReplicaState.DRAINING)]
    room = (at_once if proven else 1) - len(under_way)
    others = [replica for replica in replicas if replica not in ready]
    if len(ready) > 1 or (spare_last and any(replica.failures < HOPELESS_FAILURES for replica in others)):
        room = min(room, len(ready) - 1)  # one replica keeps serving
    return stale[: max(0, room)]


class WeightSync:
    """Watches the checkpoint table and updates the pool.

    Args:
        newest: returns the newest readable checkpoint, or None; may block, and raise `DataError`.
        offered: returns the weights that a trainer has in its memory, or None; may block and raise as well.

    Attributes:
        from_memory: number of `updates` that came from a trainer's memory.
        skipped: checkpoints that were given up, with the reason.
    """

    def __init__(
        self,
        newest: Callable[[], Weights | CheckpointRow | None],
        pool: EnginePool,
        *,
        interval_s: float = 0.2,
        availability: Availability | None = None,
        offered: Callable[[], Weights | None] = lambda: None,
    ) -> None:
        self._newest, self._offered = newest, offered
        self.pool = pool
        self._interval = interval_s
        self._availability = availability or Availability("the database", math.inf)
        self._failures: Counter[Weights] = Counter()
        self.unread: Counter[int] = Counter()  # failures by version to read it from memory
        self._read: set[int] = set()  # versions that were read from memory, and verified
        self._checked: Weights | None = None
        self._running: set[str] = set()
        self._ended = Wakeup()
        self._alone_since: float | None = None  # when the only serving replica became the only one
        self.target: Weights | None = None
        self.updates = self.failed = self.from_memory = 0
        self.update_s = 0.0
        self.skipped: dict[Weights, str] = {}

    async def run(self) -> None:
        """Update replicas as new checkpoints appear, until cancelled."""
        async with TaskGroup() as group:
            while True:
                await self.begin(group)
                await self._ended.wait(time.monotonic() + self._interval)

    async def begin(self, group: TaskGroup) -> int:
        """Look up the newest checkpoint and begin the updates that may begin now; return their number."""
        weights = await asyncio.to_thread(self._look_up)
        if weights is None or weights in self.skipped or not await self._sound(weights):
            return 0
        self.target = self.pool.fleet.published = weights
        if not weights.memory and not Path(self.pool.fleet.weights.path).is_dir():
            self.pool.fleet.weights = weights  # the former ones were pruned: replicas can no longer start with them
        proven = any(replica.usable and replica.verified == weights.version for replica in self.pool.replicas)
        if proven and not weights.memory:
            self.pool.fleet.loaded(weights)  # also if all replicas read it from memory before its files existed
        stale = next_stale(
            self.pool.replicas,
            weights.version,
            at_once=self.pool.config.updates_at_once or max(1, len(self.pool.replicas) // 2),
            proven=proven,
            begun=self._running,
            spare_last=not self._long_alone(),
        )
        stale = [one for one in stale if one.version not in self._read or one.version < weights.version]
        for replica in stale:
            self._running.add(replica.name)
            group.create_task(self.update_replica(replica, weights), name=f"update {replica.name}")
        return len(stale)

    def _long_alone(self) -> bool:
        """Return whether a single replica has served for longer than another one takes to come back."""
        if sum(replica.usable for replica in self.pool.replicas) != 1:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = time.monotonic()
        return self._alone_since is not None and time.monotonic() - self._alone_since >= ALONE_S

    async def update_replica(self, replica: Replica, weights: Weights) -> None:
        """Update one replica and count the outcome. Weights that fail `MAX_FAILURES` times are skipped."""
        started = time.perf_counter()
        try:
            await self.pool.lives[replica.name].update(weights)
        except EngineBusy:
            return  # it went out of service before the update; a later look tries again
        except EngineError as error:
            self.failed += 1
            if weights.memory:  # this says nothing about the files, which are next
                self.unread[weights.version] += MAX_FAILURES if isinstance(error, UpdateNotBegun) else 1
                _log.warning("version %d was not read from memory: %s", weights.version, error)
                return
            self._failures[weights] += 1
            if self._failures[weights] >= MAX_FAILURES:
                self._skip(weights, f"failed {self._failures[weights]} times, at last: {error}")
        else:
            self.updates += 1
            if weights.memory:
                self.from_memory += 1
                self._read.add(weights.version)
            self.update_s += time.perf_counter() - started
        finally:
            self._running.discard(replica.name)
            self._ended.wake()

    def _look_up(self) -> Weights | None:
        try:
            found, offered = self._newest(), self._offered()
        except DataError as error:
            self._availability.failed(error, "checkpoints")
            return None
        self._availability.succeeded("checkpoints")
        version = found.version if found is not None else UNKNOWN
        if offered is not None and offered.version > version and self.unread[offered.version] < MAX_FAILURES:
            return offered
        return Weights(found.path, found.version, found.url) if found is not None else None

    async def _sound(self, weights: Weights) -> bool:
        """Return whether files are complete and tensors fit the model. Engines check weights in memory themselves."""
        if weights != self._checked and not weights.memory:
            reason = await asyncio.to_thread(why_unusable, weights.path)
            reason = reason or await asyncio.to_thread(why_unfit, weights.path, self.pool.fleet.weights.path)
            if reason:
                self._skip(weights, reason)
                return False
            self._checked = weights
        return True

    def _skip(self, weights: Weights, reason: str) -> None:
        self.skipped[weights] = reason
        _log.error("checkpoint version %d is skipped: %s", weights.version, reason)
