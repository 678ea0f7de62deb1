"""WeightSync: brings newly published checkpoints into the replicas, one at a time, while the others go on.

Invariants:
    - The newest checkpoint is looked up before each single update, so a newer one supersedes what has not begun.
    - At most one replica is being updated at any time.
    - An update counts only when the replica itself reports the version. One that fails is quarantined and restarted
      with the last weights that were verified; a checkpoint that fails `MAX_FAILURES` times, or whose directory is
      incomplete, is skipped with a logged reason and the next one is tried when it comes.
    - Nothing here ends the service: a database that is away is asked again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from dart_agent.engines.base import EngineError
from dart_train.errors import DataError
from dart_train.rollout.engines import EnginePool
from dart_train.rollout.replica import Replica, ReplicaState, Weights

_log = logging.getLogger(__name__)
MAX_FAILURES = 2
MAX_HEADER = 100 << 20  # of a safetensors file, its own limit


def why_unusable(path: str | Path) -> str:
    """Look at a checkpoint directory without reading its weights; return what is wrong, "" if nothing is."""
    directory = Path(path)
    if not directory.is_dir():
        return f"{directory} is no directory"
    try:
        json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        return f"config.json cannot be read: {error}"
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        return f"{directory} holds no *.safetensors"
    return next(filter(None, map(_why_broken, files)), "")


def _why_broken(path: Path) -> str:
    """Compare a safetensors file's size with its header."""
    try:
        with path.open("rb") as file:
            prefix = file.read(8)
            (length,) = struct.unpack("<Q", prefix) if len(prefix) == 8 else (MAX_HEADER + 1,)
            if length > MAX_HEADER:
                return f"{path.name} has no valid header"
            header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        return f"{path.name} cannot be read: {error}"
    size = path.stat().st_size
    return "" if size == expected else f"{path.name} has {size} bytes, its header says {expected}"


def next_stale(replicas: Sequence[Replica], version: int) -> Replica | None:
    """The replica to update next: the READY one that serves the oldest of the wrong versions. Pure."""
    stale = [r for r in replicas if r.state is ReplicaState.READY and r.version != version]
    return min(stale, key=lambda replica: replica.version, default=None)


class WeightSync:
    """Watches the checkpoint table and updates the pool.

    Args:
        newest: returns the newest checkpoint that can be read, None before the first; may block and raise `DataError`.
        pool: the replicas.
        interval_s: between two looks.
    """

    def __init__(self, newest: Callable[[], Weights | None], pool: EnginePool, *, interval_s: float = 0.2) -> None:
        self._newest, self._pool, self._interval = newest, pool, interval_s
        self._failures: Counter[Weights] = Counter()
        self._skipped: set[Weights] = set()
        self._checked: Weights | None = None
        self._away = False
        self.target: Weights | None = None
        self.updates = 0
        self.update_s = 0.0

    async def run(self) -> None:
        """Update replicas as checkpoints come, until cancelled."""
        while True:
            if not await self.update_one():
                await asyncio.sleep(self._interval)

    async def update_one(self) -> bool:
        """Look up the newest checkpoint and update at most one replica; return whether there was one to update."""
        weights = await asyncio.to_thread(self._look_up)
        if weights is None or weights in self._skipped or not await self._sound(weights):
            return False
        self.target = weights
        if not Path(self._pool.weights.path).is_dir():  # pruned: a replica could not be started with it any more
            self._pool.weights = weights
        replica = next_stale(self._pool.replicas, weights.version)
        if replica is None:
            return False
        started = time.perf_counter()
        try:
            await self._pool.update(replica, weights)
        except EngineError as error:
            self._failed(replica, weights, error)
        else:
            self.updates += 1
            self.update_s += time.perf_counter() - started
        return True

    def _look_up(self) -> Weights | None:
        try:
            weights = self._newest()
        except DataError as error:
            if not self._away:
                _log.warning("cannot look for checkpoints, will go on trying: %s", error)
            self._away = True
            return None
        self._away = False
        return weights

    async def _sound(self, weights: Weights) -> bool:
        if weights != self._checked:
            reason = await asyncio.to_thread(why_unusable, weights.path)
            if reason:
                self._skip(weights, reason)
                return False
            self._checked = weights
        return True

    def _failed(self, replica: Replica, weights: Weights, error: EngineError) -> None:
        self._failures[weights] += 1
        self._pool.quarantine(replica, f"update to version {weights.version} failed: {error}")
        if self._failures[weights] >= MAX_FAILURES:
            self._skip(weights, f"failed {self._failures[weights]} times, at last: {error}")

    def _skip(self, weights: Weights, reason: str) -> None:
        self._skipped.add(weights)
        _log.error("checkpoint version %d is skipped: %s", weights.version, reason)
