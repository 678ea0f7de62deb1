"""Deals rollouts to the workers.

It works rollout-wise, as in DART: a free worker gets the next rollout, and nobody waits for a batch or a task. Packages
may add subclasses that wait, which `rollout.mode` names; the laboratory has two of them for comparison.

Pure: no clock, no I/O, no random state; the same configuration and the same sequence of calls give the same answers.

Invariants:
    - A task that is held back keeps no worker from another task.
    - A group is `group_size` rollouts of one task and one seed, or fewer if curation planned fewer for the task. The
      size is fixed when the group is opened. Each member is dealt once, and again if it was lost, at most
      `max_attempts` times. Every opened group therefore terminates: each member ends as completed or given up.
    - Training seeds are at least `FIRST_TRAINING_SEED`; no seed below is ever dealt.
    - Fairness is over groups, so a task with smaller groups gets a smaller share of the rollouts. Let v(task) = groups
      dealt / weight, where a member counts as its part of the group, divided by the share that curation gave the task.
      A new group is opened, or a member dealt for the first time, only for the task with the smallest v, or for the
      worker's present task while that is at most `stay_groups` full groups ahead, counted in rollouts. (A worker that
      changes its task pays for a new page, so small groups must not make it change more often.) This does not apply to
      finishing open groups while no new group is admitted, or while the limit of groups at once is reached.
    - Members of an open group come before a new group of the same task.
    - Members of a group that is over (`end_groups`) are not dealt, nor dealt again.
    - completed + running + to deal never exceeds the budget: a group that does not fit is not opened.
    - A fork (`fork`) is a group of a task that was played before. It takes the place of the task's next group, with the
      same admission, shares and budget. A fork that does not fit the budget waits until another group ends.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_train.core.availability import Availability
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.manager.recording import Recording
from dart_train.rollout.forks.fork import Fork
from dart_train.rollout.settings.rollout_config import TaskEntry

SEED_RANGE = (1 << 31) - FIRST_TRAINING_SEED


@dataclass(frozen=True, slots=True)
class Assignment:
    """One rollout to play.

    Attributes:
        group_key: name of the group, unique over all lives of a run.
        attempt: number of times that this member was dealt before.
        sampling_seed: seed of the policy's sampling, different for all members and attempts.
        fork: the fork to continue from; None for a rollout from the beginning.
    """

    task_id: str
    seed: int
    group_key: str
    n: int
    attempt: int
    sampling_seed: int
    max_steps: int | None = None
    group_size: int = 1
    fork: Fork | None = None


@dataclass(slots=True, eq=False)
class Group:
    """One group of rollouts."""

    key: str
    task: _Task
    seed: int
    size: int
    max_steps: int | None
    to_deal: deque[tuple[int, int]]  # (member, attempt)
    unfinished: int
    over: bool = False  # nobody waits for its running members
    fork: Fork | None = None


@dataclass(slots=True, eq=False)
class _Task:
    entry: TaskEntry
    order: int
    size: int  # of its next group
    max_steps: int | None  # of its next group
    opened: int = 0
    dealt: int = 0
    dealt_groups: float = 0.0  # each divided by the share at that time, so a new share does not change the past
    share: float = 1.0  # current factor on the weight
    admitted: bool = True  # whether its groups may be opened
    groups: deque[Group] = field(default_factory=deque)  # groups with members to deal, oldest first
    forks: deque[Group] = field(default_factory=deque)  # forks to open before its next group

    @property
    def served(self) -> float:
        return self.dealt_groups / self.entry.weight


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of the service that a scheduler's helpers may use.

    Attributes:
        data: data of the run.
        pending: returns the number of rollouts that have ended and are not recorded yet.
        served: returns the versions that the usable engines serve.
        wake: makes waiting workers ask the scheduler again.
        availability: availability of the database.
    """

    data: Recording
    pending: Callable[[], int]
    served: Callable[[], Iterable[int]]
    wake: Callable[[], None]
    availability: Availability


class Scheduler:
    """Decides what each free worker plays next.

    Args:
        budget: rollouts of the whole run, including earlier lives; None for no limit.
        life: name of this life of the service, which keeps its groups apart from those of earlier lives.
        stay_groups: number of full groups of rollouts that a task may be ahead before a worker leaves it.
        groups_at_once: no new group is opened while this many groups have members to deal. 1 completes groups soonest;
            None, for no limit, lets each worker stay on a task of its own.

    Attributes:
        waits: whether a worker may have to wait for the end of another worker's rollout.
        waits_for_batches: whether workers are idle until a batch has been trained on.
    """

    waits: ClassVar[bool] = False
    waits_for_batches: ClassVar[bool] = False

    def __init__(
        self,
        tasks: Sequence[TaskEntry],
        *,
        group_size: int = 8,
        seed: int = 0,
        budget: int | None = None,
        completed: int = 0,
        life: str = "0",
        max_steps: int | None = None,
        stay_groups: float = 2.0,
        max_attempts: int = 5,
        groups_at_once: int | None = None,
    ) -> None:
        self.group_size = group_size
        self.budget = budget
        self.completed = completed
        self.lost = 0
        self.given_up = 0
        self.running = 0
        self.opened = 0
        self._tasks = {
            entry.id: _Task(entry, order, size=group_size, max_steps=entry.max_steps or max_steps)
            for order, entry in enumerate(tasks)
        }
        self.groups: dict[str, Group] = {}
        self._unfinished = 0  # members of all open groups
        self._to_deal = 0  # groups with members to deal
        self._worker_task: dict[int, _Task] = {}
        self._origin = f"{seed}/{completed}"
        self._life = life
        self._slack = stay_groups * group_size
        self._max_attempts = max_attempts
        self._at_once = groups_at_once or math.inf

    @classmethod
    def for_run(cls, curation: CurationConfig, tasks: Sequence[TaskEntry], **settings: Any) -> Self:
        """Return the scheduler of a run with this curation."""
        return cls(tasks, **settings)

    @property
    def may_open(self) -> bool:
        """Return whether the scheduler itself would open another group."""
        return True

    def helpers(self, around: Surroundings) -> list[Coroutine[Any, Any, None]]:
        """Return coroutines that the service runs beside the workers."""
        return []

    def group_opened(self, key: str) -> None:
        """Note that a group was opened."""

    def group_ended(self, key: str) -> None:
        """Note that a group has ended."""

    def next(self, worker: int, *, admitted: bool = True, held: Collection[str] = ()) -> Assignment | None:
        """Return the next rollout of a worker, or None if there is nothing to do for it now.

        Unless `admitted`, the data manager takes no further group; open groups are dealt in any case. `held` tasks are
        not dealt, and their groups do not count against `groups_at_once`: a task that is held back while one of its
        rollouts is tried must not keep other workers from groups of other tasks.
        """
        if not admitted and not self._to_deal:
            return None
        admitted = admitted and self.may_open
        open_to = [task for task in self._tasks.values() if task.groups or (admitted and self._fits(task))]
        if held:
            open_to = [task for task in open_to if task.entry.id not in held]
        if self._to_deal - sum(len(task.groups) for task in self._held_back(held)) >= self._at_once:
            open_to = [task for task in open_to if task.groups]
        open_to = [task for task in open_to if task.groups or task.admitted]
        if not open_to:
            return None
        task = self._choose(open_to, self._worker_task.get(worker))
        if not task.groups:
            self._open(task)
        self._worker_task[worker] = task
        return self.deal(task.groups[0])

    def plan(
        self, task_id: str, *, group_size: int, max_steps: int | None, share: float = 1.0, admitted: bool = True
    ) -> None:
        """Set the size and step limit of a task's groups from the next one on, and its share from now on."""
        task = self._tasks[task_id]
        task.size = group_size
        task.max_steps = max_steps
        task.share = share
        task.admitted = admitted

    def fork(self, parent: Assignment, key: str, fork: Fork, size: int) -> None:
        """Queue a group of continuations, which is opened as soon as its task may have another group."""
        task = self._tasks[parent.task_id]
        members = deque((n, 0) for n in range(size))
        task.forks.append(Group(key, task, parent.seed, size, parent.max_steps, members, size, fork=fork))

    def complete(self, assignment: Assignment) -> None:
        """Note that a rollout was played and recorded."""
        self.running -= 1
        self.completed += 1
        self._finish_member(self.groups[assignment.group_key])

    def lose(self, assignment: Assignment) -> bool:
        """Note that a rollout was lost; return whether it is dealt again, as `max_attempts` and its group allow."""
        self.running -= 1
        self.lost += 1
        group = self.groups[assignment.group_key]
        if group.over or assignment.attempt + 1 >= self._max_attempts:
            self._give_up_member(group)
            return False
        if not group.to_deal:
            group.task.groups.appendleft(group)
            self._to_deal += 1
        group.to_deal.append((assignment.n, assignment.attempt + 1))
        return True

    def drop(self, task_id: str) -> int:
        """Give up all members of a task that are still to be dealt; return their number."""
        groups = list(self._tasks[task_id].groups)
        return sum(self._give_up_undealt(group) for group in groups)

    def end_groups(self, keys: Iterable[str]) -> int:
        """Give up undealt members of groups that take no more; return their number. `is_over` ends running ones."""
        dropped = 0
        for key in keys:
            group = self.groups.get(key)
            if group is not None:
                group.over = True
                dropped += self._give_up_undealt(group)
        return dropped

    def is_over(self, key: str) -> bool:
        """Return whether a group takes no more members."""
        group = self.groups.get(key)
        return group is None or group.over

    @property
    def open_keys(self) -> list[str]:
        """Keys of the open groups."""
        return list(self.groups)

    def rejoin(self, task_id: str) -> None:
        """Let a skipped task take part again, without catching up on what it missed."""
        task = self._tasks[task_id]
        others = [other.served for other in self._tasks.values() if other is not task]
        task.dealt_groups = max(task.dealt_groups, min(others, default=0.0) * task.entry.weight)

    @property
    def open_groups(self) -> int:
        """Groups with members that are running or not dealt yet."""
        return len(self.groups)

    def backlog(self, held: Collection[str] = ()) -> tuple[int, int]:
        """Return the number of open groups, and of their unfinished members, that can end now.

        Groups of `held` tasks with members to deal cannot end. If they counted, many failing tasks that are tried at
        the same time would leave no room for the others.
        """
        waiting = [group for task in self._held_back(held) for group in task.groups]
        return len(self.groups) - len(waiting), self._unfinished - sum(len(group.to_deal) for group in waiting)

    def _held_back(self, held: Collection[str]) -> list[_Task]:
        return [task for name in held if (task := self._tasks.get(name)) is not None]

    @property
    def exhausted(self) -> bool:
        """Return whether the budget allows no further group and all opened ones have ended."""
        return not self.groups and not any(self._fits(task) for task in self._tasks.values())

    @property
    def unfinished(self) -> int:
        """Members of open groups that are running or not dealt yet."""
        return self._unfinished

    def dealt(self) -> dict[str, int]:
        """Rollouts dealt by task in this life, repeats not counted."""
        return {task_id: task.dealt for task_id, task in self._tasks.items()}

    def _choose(self, tasks: Sequence[_Task], present: _Task | None) -> _Task:
        least = min(tasks, key=lambda task: (task.served, task.order))
        if present is not None and present in tasks and present.served - least.served <= self._slack / present.size:
            return present
        return least

    def _fits(self, task: _Task) -> bool:
        return self._has_room_for(task.size)

    def _has_room_for(self, rollouts: int) -> bool:
        return self.budget is None or self.completed + self._unfinished + rollouts <= self.budget

    def _open(self, task: _Task) -> None:
        if task.forks and self._has_room_for(task.forks[0].size):
            self._add(task.forks.popleft())
            return
        digest = hashlib.blake2b(f"{self._origin}/{task.entry.id}/{task.opened}".encode(), digest_size=8).digest()
        seed = FIRST_TRAINING_SEED + int.from_bytes(digest) % SEED_RANGE
        key = f"{task.entry.id}@{seed}#{self._life}.{task.opened}"
        members = deque((n, 0) for n in range(task.size))
        group = Group(key, task, seed, task.size, task.max_steps, members, unfinished=task.size)
        task.opened += 1
        self._add(group)

    def _add(self, group: Group) -> None:
        self.opened += 1
        group.task.groups.append(group)
        self._to_deal += 1
        self.groups[group.key] = group
        self._unfinished += group.size
        self.group_opened(group.key)

    def deal(self, group: Group) -> Assignment:
        """Deal the next member of a group, which has one."""
        task = group.task
        n, attempt = group.to_deal.popleft()
        if not group.to_deal:
            task.groups.remove(group)
            self._to_deal -= 1
        if attempt == 0:
            task.dealt += 1
            task.dealt_groups += 1 / (group.size * task.share)
        self.running += 1
        digest = hashlib.blake2b(f"{group.key}/{n}/{attempt}".encode(), digest_size=4).digest()
        return Assignment(
            task_id=task.entry.id,
            seed=group.seed,
            group_key=group.key,
            n=n,
            attempt=attempt,
            sampling_seed=int.from_bytes(digest) & 0x7FFFFFFF,
            max_steps=group.max_steps,
            group_size=group.size,
            fork=group.fork,
        )

    def _give_up_undealt(self, group: Group) -> int:
        if not group.to_deal:
            return 0
        group.task.groups.remove(group)
        self._to_deal -= 1
        count = len(group.to_deal)
        while group.to_deal:
            group.to_deal.popleft()
            self._give_up_member(group)
        return count

    def _give_up_member(self, group: Group) -> None:
        self.given_up += 1
        self._finish_member(group)

    def _finish_member(self, group: Group) -> None:
        group.unfinished -= 1
        self._unfinished -= 1
        if group.unfinished == 0:
            del self.groups[group.key]
            self.group_ended(group.key)
