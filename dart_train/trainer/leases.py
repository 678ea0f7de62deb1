"""What the trainer holds of the data manager: one lease at a time, kept alive while it is trained on.

Invariants:
    - At most one lease is held. It is committed after its last update, or given back when the holder is closed; a
      killed process stops sending heartbeats, and the data manager takes the groups back.
    - Waiting is never silent: every `REASON_INTERVAL_S` the log says why nothing can be leased.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from torch.utils.data import IterableDataset

from dart_train.errors import LeaseError

if TYPE_CHECKING:
    from dart_train.data.manager import DataManager, LeasedGroups

_log = logging.getLogger(__name__)

REASON_INTERVAL_S = 15.0
POLL_S = 0.5  # how often a waiting trainer asks whether it shall stop


@dataclass(frozen=True, slots=True)
class Leased:
    """A lease, and how long the trainer waited for it."""

    groups: LeasedGroups
    wait_s: float


class LeaseHolder:
    """Takes, keeps and hands in leases. A context manager: leaving it gives back what is still held.

    Args:
        data: the data manager.
        holder: name of this trainer; what an earlier life under this name left is given back on entering.
        groups: how many groups a lease asks for.
        at_least: how few it may hold.
        ttl_s: time to live of a lease without heartbeats.
        stop: asked before every lease and while waiting for one.
    """

    def __init__(
        self,
        data: DataManager,
        holder: str,
        *,
        groups: int,
        at_least: int,
        ttl_s: float,
        stop: Callable[[], bool],
    ) -> None:
        self._data = data
        self._name = holder
        self._groups = groups
        self._at_least = at_least
        self._ttl_s = ttl_s
        self._stop = stop
        self._lease_id: str | None = None
        self._lost = False
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LeaseHolder:
        self._data.release_all(self._name)
        self._closed.clear()
        self._thread = threading.Thread(target=self._beat, name="lease-heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        lease_id = self._let_go()
        if lease_id is not None:
            self._data.release(lease_id)

    def take(self) -> Leased | None:
        """Wait for the next lease; None when told to stop."""
        started = said = time.monotonic()
        while not self._stop():
            groups = self._data.lease(
                self._groups, self._name, ttl_s=self._ttl_s, timeout_s=POLL_S, at_least=self._at_least
            )
            now = time.monotonic()
            if groups is not None and groups.groups:
                with self._lock:
                    self._lease_id, self._lost = groups.lease_id, False
                return Leased(groups, now - started)
            if now - said >= REASON_INTERVAL_S:
                _log.info("waiting for data since %.0f s: %s", now - started, self._data.why())
                said = now
        return None

    def commit(self, version: int) -> None:
        """Hand the lease in: weights of `version` were trained on it. One that was lost meanwhile is only logged."""
        lease_id = self._let_go()
        if lease_id is None:
            return
        try:
            self._data.commit(lease_id, version)
        except LeaseError as error:
            _log.warning("trained on a lease that was lost meanwhile, its groups may be trained again: %s", error)

    def _let_go(self) -> str | None:
        with self._lock:
            lease_id, self._lease_id = self._lease_id, None
        return lease_id

    def _beat(self) -> None:
        while not self._closed.wait(self._ttl_s / 3):
            with self._lock:  # held while beating, so that no beat comes after the commit
                if self._lease_id is None or self._lost:
                    continue
                try:
                    self._data.heartbeat(self._lease_id)
                except LeaseError as error:
                    _log.warning("the lease was lost while it was trained on: %s", error)
                    self._lost = True  # and handed in all the same: what others have is counted as trained twice


class LeaseDataset(IterableDataset):
    """Yields each lease `iterations` times, until the holder has no more.

    Args:
        holder: where leases come from.
        iterations: optimizer steps on each lease.
        on_end: called once the holder was told to stop.
    """

    def __init__(self, holder: LeaseHolder, iterations: int, on_end: Callable[[], None]) -> None:
        self._holder = holder
        self._iterations = iterations
        self._on_end = on_end

    def __iter__(self) -> Iterator[Leased]:
        while (leased := self._holder.take()) is not None:
            for _ in range(self._iterations):
                yield leased
        self._on_end()
