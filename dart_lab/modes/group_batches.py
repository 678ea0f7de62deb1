"""Batches of groups: how many may be open, when one is complete, and what is carried into the next. Pure.

Only batch-wise rollouts know batches; rollout-wise and task-wise ones never wait for one.

Over-provisioning is APRIL's (RLsys-Foundation/APRIL), at the level of groups: more groups are opened than a batch
needs, and it is complete as soon as enough have ended, whichever they are. The rest keeps playing, is not aborted, and
counts for the next batch: a desktop cannot be put back to where it was, unlike the cache of an engine.

Invariants:
    - groups that are open + groups that ended and belong to no closed batch <= target + surplus, at any time.
    - A group is in the batch in which it was opened or in one of the `window` next: a batch waits for groups that could
      not join the following one any more. So nothing that was played has to be thrown away for its age.
"""

import math
from collections.abc import Iterable


class Batches:
    """Counts groups into batches.

    Args:
        over_provision: groups that are opened for it, as a multiple of the target, from 1 (none more) to 2.
        window: batches that a group may come late, the data manager's `max_staleness`; None for any number.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(self, target: int, *, over_provision: float = 1.0, window: int | None = None) -> None:
        if target < 1:
            raise ValueError(f"a batch of {target} groups: use at least 1")
        if not 1.0 <= over_provision <= 2.0:
            raise ValueError(
                f"over_provision {over_provision}: use 1 to 2, or what is left over grows from batch to batch"
            )
        if over_provision > 1.0 and window == 0:
            raise ValueError("over_provision above 1 carries groups into the next batch: use a window of at least 1")
        self.target = target
        self.allowed = math.ceil(target * over_provision - 1e-9)
        self.window = window
        self.number = 0
        self._born: dict[str, int] = {}  # open group -> batch in which it was opened
        self._ended = 0

    @property
    def may_open(self) -> bool:
        """Return whether another group may be opened."""
        return len(self._born) + self._ended < self.allowed

    @property
    def complete(self) -> bool:
        """Return whether enough groups have ended, and none is open that would be too old for the next batch."""
        waits = self.window is not None and any(born <= self.number - self.window for born in self._born.values())
        return self._ended >= self.target and not waits

    @property
    def carried(self) -> int:
        """Groups that have ended beyond the target: they are in the next batch."""
        return max(0, self._ended - self.target)

    def opened(self, key: str) -> None:
        """A group was opened."""
        self._born[key] = self.number

    def ended(self, key: str) -> int:
        """All members of a group have ended; return how many batches ago it was opened."""
        self._ended += 1
        return self.number - self._born.pop(key)

    def close(self) -> None:
        """Note that the batch was trained on. Rollouts beyond its target count for the next batch.

        Raises:
            ValueError: if the batch is incomplete.
        """
        if not self.complete:
            raise ValueError(f"batch {self.number} is not complete: {self._ended} of {self.target} groups have ended")
        self.number += 1
        self._ended -= self.target


def trained_and_served(*, target: int, ready: int, leased: int, newest: int | None, served: Iterable[int]) -> bool:
    """Return whether nothing of a complete batch is left to train, and every engine serves the new weights. Pure.

    Groups that curation dropped are missing in the batch; it is over all the same, and what it left waits for the next.
    """
    versions = set(served)
    return ready < target and not leased and bool(versions) and (newest is None or versions == {newest})
