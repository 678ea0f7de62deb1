"""The trainer's lease: one at a time, renewed while it is trained on.

Invariants:
    - At most one lease is held. It is committed after its last update, or given back when the source is left; a
      killed process stops sending heartbeats, and the data manager takes the groups back.
    - `contained` is the serial of the newest lease that the weights were trained on. It is saved with them, and handed
      to `Leasing.resume` at the next start: groups that were committed after the saved weights are given back, and
      groups that the weights contain are marked trained. Nothing is trained twice, nothing is lost.
    - With several ranks the main one takes and settles leases and tells the others; a wait for data is cut into short
      ones, so that no rank waits for another longer than `POLL_S`.
    - Waiting is never silent: every `REASON_INTERVAL_S` the log says why nothing can be leased.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from torch.utils.data import IterableDataset

from dart_train.core.train_errors import LeaseError, TrainingError
from dart_train.trainer.batches.collator import Sample
from dart_train.trainer.weights.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from dart_train.data.manager.leasing import Group, LeasedGroups, Leasing

_log = logging.getLogger(__name__)

REASON_INTERVAL_S = 15.0
POLL_S = 0.5  # how often a waiting trainer asks whether it shall stop


@dataclass(frozen=True, slots=True)
class Lease:
    """The current lease, as every rank knows it; `serial` counts this trainer's leases, from 1.

    `numbers` are metrics of the data beside it, `imitated` steps whose responses are imitated beside it.
    """

    groups: tuple[Group, ...]
    serial: int
    wait_s: float = 0.0
    numbers: Mapping[str, float] = field(default_factory=dict)
    imitated: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class StepPart:
    """One call of `training_step`: a part (of `gradient_accumulation_steps`) of an optimizer step on a lease."""

    lease: Lease
    part: int = 0
    parts: int = 1


class LeaseSource(IterableDataset):
    """Takes, keeps and commits leases. A data set of step parts, and a context manager: leaving it gives back the rest.

    Args:
        holder: name of this trainer; what an earlier life under this name left is settled on entering.
        stop: asked before every lease and while waiting for one; only the main rank's counts.
        on_end: called once, on every rank, after `stop` said so.
        weights: version that is trained now; it may still be on its way to the disk, unknown to other processes.
        numbers: metrics of the data, asked for on the main rank with each lease.
        imitated: steps to imitate beside a lease, by its serial; asked for on the main rank.
        nothing_in: why no step of a lease can be trained on, or "". Every rank comes to the same answer.
        most_passed: leases in a row that are passed over for such a reason before the run ends.

    Attributes:
        passed: number of leases that were passed over.
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
        on_end: Callable[[], None] = lambda: None,
        weights: Callable[[], int | None] = lambda: None,
        steps: int = 1,
        parts: int = 1,
        ranks: Ranks = ALONE,
        numbers: Callable[[], Mapping[str, float]] = dict,
        imitated: Callable[[int], tuple[Sample, ...]] = lambda serial: (),
        nothing_in: Callable[[Lease], str] = lambda lease: "",
        most_passed: int = 3,
    ) -> None:
        self._numbers = numbers
        self._imitated = imitated
        self._nothing_in = nothing_in
        self._most_passed = most_passed
        self._in_a_row = 0
        self.passed = 0
        self._data = data
        self._name = holder
        self._groups = groups
        self._at_least = at_least
        self._ttl_s = ttl_s
        self._stop = stop
        self._on_end = on_end
        self._steps = steps
        self._parts = parts
        self._ranks = ranks
        self._weights = weights
        self._held: LeasedGroups | None = None
        self.contained: int | None = None

    def __iter__(self) -> Iterator[StepPart]:
        while (lease := self.take()) is not None:
            if reason := self._nothing_in(lease):
                self._pass_over(lease, reason)
                continue
            self._in_a_row = 0
            for _ in range(self._steps):
                for part in range(self._parts):
                    yield StepPart(lease, part, self._parts)
        self._on_end()

    def _pass_over(self, lease: Lease, reason: str) -> None:
        """Hand in a lease that nothing can be trained on, so that it does not come back.

        Raises:
            TrainingError: it was one too many in a row: what the rollouts record is wrong.
        """
        self.passed += 1
        self._in_a_row += 1
        self.commit(lease, self._weights() or 0)
        names = [item.trajectory_id for group in lease.groups for item in group.trajectories]
        _log.warning(
            "lease %d is passed over (%d in a row): %s; it was made of %s",
            lease.serial,
            self._in_a_row,
            reason,
            ", ".join(names[:8]),
        )
        if self._in_a_row >= self._most_passed:
            raise TrainingError(f"{self._in_a_row} leases in a row were passed over: {reason}")

    def __enter__(self) -> LeaseSource:
        if self._ranks.is_main:
            settled = self._data.resume(self._name, self.contained)
            if settled.undone or settled.committed:
                _log.info(
                    "the weights contain leases up to %s: %d groups committed, %d given back, %d undone",
                    self.contained,
                    settled.committed,
                    settled.released,
                    settled.undone,
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.__exit__(kind, error, trace)  # gives it back

    def take(self) -> Lease | None:
        """Wait for the next lease; None when told to stop. Called by all ranks."""
        started = said = time.monotonic()
        while True:
            ended, lease = self._ranks.share(self._look(started) if self._ranks.is_main else (False, None))
            if ended or lease is not None:
                return lease
            now = time.monotonic()
            if self._ranks.is_main and now - said >= REASON_INTERVAL_S:
                _log.info("waiting for data since %.0f s: %s", now - started, self._data.diagnose())
                said = now

    def _look(self, started: float) -> tuple[bool, Lease | None]:
        """Return whether it is over, and a lease if there is one within `POLL_S`."""
        if self._stop():
            return True, None
        weights, least = self._weights(), self._at_least
        found = self._data.lease(
            self._groups, self._name, ttl_s=self._ttl_s, timeout_s=POLL_S, at_least=least, weights=weights
        )
        if found is None:
            return False, None
        self._held = found.__enter__()  # heartbeats until it is settled
        waited, serial = time.monotonic() - started, found.serial
        return False, Lease(found.groups, serial, waited, dict(self._numbers()), self._imitated(serial))

    def commit(self, lease: Lease, version: int) -> None:
        """Hand the lease in: weights of `version` were trained on it. One that was lost meanwhile is only logged."""
        self.contained = lease.serial
        held, self._held = self._held, None
        if held is None:
            return
        try:
            held.commit(version)
        except LeaseError as error:
            _log.warning("trained on a lease that was lost meanwhile, its groups may be trained again: %s", error)
        finally:
            held.__exit__(None, None, None)
