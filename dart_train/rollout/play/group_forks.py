"""Forks of the groups in play: episodes are kept until their group is complete, then some of them are forked.

Or, with `of: pool`, successes of the same task; they are looked for beside the play.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from dart_agent.episodes.trajectory import Trajectory
from dart_train.core.train_errors import DataError
from dart_train.data.curation.fork_settings import ForkConfig, forked_steps, is_forked
from dart_train.rollout.forks.fork import Fork, can_fork, fork_at
from dart_train.rollout.play.ended_groups import EndedGroups, Members
from dart_train.rollout.schedule.scheduler import Assignment, Scheduler

_log = logging.getLogger(__name__)


class GroupForks:
    """Hands forks to a scheduler.

    Args:
        config: which episodes are forked, and where.
        scheduler: deals out the continuations.
        successes: finds forks of the pool's successes, each with its seed, for a task and a key. Called in a thread.

    Attributes:
        made: number of forks that were handed to the scheduler.
        given_up: number of forks by task that were given up because a replay came out differently.
    """

    def __init__(
        self,
        config: ForkConfig,
        scheduler: Scheduler,
        successes: Callable[[str, str], Iterable[tuple[int, Fork]]] = lambda task_id, key: (),
    ) -> None:
        self.enabled = config.per_group > 0
        self._config = config
        self._successes = successes
        self._failed: asyncio.Queue[tuple[str, Assignment]] = asyncio.Queue()
        self._scheduler = scheduler
        self.groups = EndedGroups(scheduler)
        self.made = 0
        self.given_up: dict[str, int] = {}

    def ended(self, assignment: Assignment, trajectory: Trajectory) -> None:
        """Take an ended rollout, after the scheduler did; fork its group if this completes the group."""
        if not self.enabled:
            return
        if members := self.groups.ended(assignment, trajectory):
            self._fork(assignment.group_key, members)

    def _fork(self, key: str, members: Members) -> None:
        assignments, episodes = [one for one, _ in members], [one for _, one in members]
        own = assignments[0].fork
        if own is not None and own.depth >= self._config.depth:
            return
        if self._config.of == "pool":
            if is_forked(episodes, self._config):
                self._failed.put_nowait((key, assignments[0]))
            return
        for number, (place, step) in enumerate(forked_steps(episodes, self._config, can_fork, key)):
            fork = fork_at(episodes[place], step, own, self._config.tolerance)
            self._scheduler.fork(assignments[place], f"{key}+{number}", fork, self._config.continuations)
            self.made += 1

    async def run(self) -> None:
        """Fork successes of the pool for groups that have ended, until cancelled."""
        while True:
            key, assignment = await self._failed.get()
            for number, (seed, fork) in enumerate(await asyncio.to_thread(self._found, assignment.task_id, key)):
                parent = replace(assignment, seed=seed)
                self._scheduler.fork(parent, f"{key}+{number}", fork, self._config.continuations)
                self.made += 1

    def _found(self, task_id: str, key: str) -> list[tuple[int, Fork]]:
        try:
            return list(self._successes(task_id, key))
        except DataError as error:
            _log.warning("no success of %s is forked: %s", task_id, error)
            return []

    def lost(self, assignment: Assignment) -> None:
        """Give up a fork because a replay came out differently; nothing more of it is played."""
        if not self._scheduler.is_over(assignment.group_key):
            self._scheduler.end_groups([assignment.group_key])
            self.given_up[assignment.task_id] = self.given_up.get(assignment.task_id, 0) + 1
