"""Schedulers that wait: task-wise for the group that a worker plays, batch-wise for the batch and its training.

Invariants:
    - Task-wise, a worker plays members of one group until that group has ended.
    - Batch-wise, the groups that are open or ended and not yet trained on are at most those of a batch and its surplus
      (`group_batches.Batches`).
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Sequence
from enum import StrEnum
from typing import Any, ClassVar

from dart_gym.core.errors import ConfigurationError
from dart_lab.modes.batch_gate import BatchGate
from dart_lab.modes.group_batches import Batches
from dart_train.data.curation.rules import CurationConfig
from dart_train.rollout.schedule.scheduler import Assignment, Group, Scheduler, Surroundings
from dart_train.rollout.settings.rollout_config import TaskEntry


class Mode(StrEnum):
    """Values of `rollout.mode` that are compared."""

    ROLLOUT = "rollout-wise"
    TASK = "task-wise"
    BATCH = "batch-wise"


class TaskWise(Scheduler):
    """The workers that play a group are a team, which takes a new group when the last member has ended."""

    waits = True

    def __init__(self, tasks: Sequence[TaskEntry], **settings: Any) -> None:
        super().__init__(tasks, **settings | {"groups_at_once": 1})  # a team is filled before the next
        self._teams: dict[int, Group] = {}

    def next(self, worker: int, *, admitted: bool = True, held: Collection[str] = ()) -> Assignment | None:
        """Return what the worker plays next: a member of its team's group while that is open."""
        bound_to = self._teams.get(worker)
        if bound_to is not None and bound_to.unfinished:
            return self.deal(bound_to) if bound_to.to_deal and bound_to.task.entry.id not in held else None
        assignment = super().next(worker, admitted=admitted, held=held)
        if assignment is not None:
            self._teams[worker] = self.groups[assignment.group_key]
        return assignment


class BatchWise(Scheduler):
    """New groups come with a new batch: once the batch was trained on and all engines serve the new weights."""

    waits = True
    waits_for_batches = True
    over_provision: ClassVar[float] = 1.0

    def __init__(self, tasks: Sequence[TaskEntry], *, batches: Batches, **settings: Any) -> None:
        super().__init__(tasks, **settings)
        self.batches = batches

    @classmethod
    def for_run(cls, curation: CurationConfig, tasks: Sequence[TaskEntry], **settings: Any) -> BatchWise:
        """Return the scheduler of a run.

        Raises:
            ConfigurationError: if a surplus could not be carried into the next batch.
        """
        try:
            batches = Batches(curation.batch_groups, over_provision=cls.over_provision, window=curation.max_staleness)
        except ValueError as error:
            raise ConfigurationError(f"rollout.mode and data.curation.max_staleness: {error}") from error
        return cls(tasks, batches=batches, **settings)

    @property
    def may_open(self) -> bool:
        """Return whether the batch takes another group."""
        return self.batches.may_open

    def helpers(self, around: Surroundings) -> list[Coroutine[Any, Any, None]]:
        """Return the gate that closes batches."""
        return [BatchGate(self.batches, around).run()]

    def group_opened(self, key: str) -> None:
        """Count an opened group."""
        self.batches.opened(key)

    def group_ended(self, key: str) -> None:
        """Count a group that has ended."""
        self.batches.ended(key)


class OverProvisioned(BatchWise):
    """Batch-wise, with half as many groups again opened as complete a batch; the rest counts for the next one."""

    over_provision = 1.5
