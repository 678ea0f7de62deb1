"""What the trainer holds of the data manager: one lease at a time, kept alive while it is trained on.

Invariants:
    - At most one lease is held. It is committed after its last update, or given back when the holder is closed; a
      killed process stops sending heartbeats, and the data manager takes the groups back.
    - `contained` is the serial of the newest lease that the weights were trained on. It is saved with them, and handed
      to `Leasing.resume` at the next start: whatever was committed after the saved weights is given back, and
      whatever they contain is marked trained. Nothing is trained twice, nothing is lost.
    - With several ranks the main one takes and settles leases and tells the others; a wait for data is cut into short
      ones, so that no rank waits for another longer than `POLL_S`.
    - Waiting is never silent: every `REASON_INTERVAL_S` the log says why nothing can be leased.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from torch.utils.data import IterableDataset

from dart_train.core.train_errors import LeaseError
from dart_train.trainer.weights.ranks import Ranks

if TYPE_CHECKING:
    from dart_train.data.manager.leasing import Group, LeasedGroups, Leasing

_log = logging.getLogger(__name__)

REASON_INTERVAL_S = 15.0
POLL_S = 0.5  # how often a waiting trainer asks whether it shall stop


@dataclass(frozen=True, slots=True)
class Leased:
    """A lease as it is trained on.

    Attributes:
        groups: its groups.
        serial: counts the holder's leases.
        wait_s: how long the trainer waited for it.
    """

    groups: tuple[Group, ...]
    serial: int
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of `training_step`: a part of one of the optimizer steps on a lease.

    Attributes:
        leased: the lease.
        part: from 0.
        parts: calls per optimizer step (`gradient_accumulation_steps`).
    """

    leased: Leased
    part: int = 0
    parts: int = 1


class LeaseHolder:
    """Takes, keeps and hands in leases. A context manager: leaving it gives back what is still held.

    Args:
        data: the data manager.
        holder: name of this trainer; what an earlier life under this name left is settled on entering.
        groups: how many groups a lease asks for.
        at_least: how few it may hold.
        ttl_s: time to live of a lease without heartbeats.
        stop: asked before every lease and while waiting for one; only the main rank's counts.
        ranks: who trains together.

    Attributes:
        contained: serial of the newest lease that the weights contain; None if unknown. Set it before entering.
    """

    def __init__(
        self,
        data: Leasing,
        holder: str,
        *,
        groups: int,
        at_least: int,
        ttl_s: float,
        stop: Callable[[], bool],
        ranks: Ranks | None = None,
    ) -> None:
        self._data = data
        self._name = holder
        self._groups = groups
        self._at_least = at_least
        self._ttl_s = ttl_s
        self._stop = stop
        self._ranks = ranks or Ranks()
        self._held: LeasedGroups | None = None
        self.contained: int | None = None

    def __enter__(self) -> LeaseHolder:
        if self._ranks.is_main:
            settled = self._data.resume(self._name, self.contained)
            if settled.undone or settled.committed:
                _log.info(
                    "the weights contain leases up to %s: %d groups committed, %d given back, %d undone",
                    self.contained, settled.committed, settled.released, settled.undone,
                )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.__exit__(kind, error, trace)  # gives it back

    def take(self) -> Leased | None:
        """Wait for the next lease; None when told to stop. Called by all ranks."""
        started = said = time.monotonic()
        while True:
            ended, leased = self._ranks.share(self._look(started) if self._ranks.is_main else (False, None))
            if ended or leased is not None:
                return leased
            now = time.monotonic()
            if self._ranks.is_main and now - said >= REASON_INTERVAL_S:
                _log.info("waiting for data since %.0f s: %s", now - started, self._data.diagnose())
                said = now

    def _look(self, started: float) -> tuple[bool, Leased | None]:
        """Whether it is over, and a lease if there is one within `POLL_S`."""
        if self._stop():
            return True, None
        found = self._data.lease(self._groups, self._name, ttl_s=self._ttl_s, timeout_s=POLL_S, at_least=self._at_least)
        if found is None:
            return False, None
        self._held = found.__enter__()  # heartbeats until it is settled
        return False, Leased(found.groups, found.serial, time.monotonic() - started)

    def commit(self, leased: Leased, version: int) -> None:
        """Hand the lease in: weights of `version` were trained on it. One that was lost meanwhile is only logged."""
        self.contained = leased.serial
        held, self._held = self._held, None
        if held is None:
            return
        try:
            held.commit(version)
        except LeaseError as error:
            _log.warning("trained on a lease that was lost meanwhile, its groups may be trained again: %s", error)
        finally:
            held.__exit__(None, None, None)


class LeaseDataset(IterableDataset):
    """Yields the turns of each lease, until the holder has no more.

    Args:
        holder: where leases come from.
        iterations: optimizer steps on each lease.
        parts: calls of `training_step` per optimizer step.
        on_end: called once the holder was told to stop.
    """

    def __init__(self, holder: LeaseHolder, iterations: int, on_end: Callable[[], None], parts: int = 1) -> None:
        self._holder = holder
        self._iterations = iterations
        self._parts = parts
        self._on_end = on_end

    def __iter__(self) -> Iterator[Turn]:
        while (leased := self._holder.take()) is not None:
            for _ in range(self._iterations):
                for part in range(self._parts):
                    yield Turn(leased, part, self._parts)
        self._on_end()
