"""Planner: asks the data manager periodically whether groups may be opened, how large and how long."""

import asyncio
import logging
import math
from dataclasses import asdict

from dart_train.core.availability import Availability
from dart_train.core.train_errors import DataError
from dart_train.data.curation.rollout_admission import idle_workers
from dart_train.data.manager.recording import Recording
from dart_train.rollout.play.rollout_workers import Workers
from dart_train.rollout.schedule.scheduler import Scheduler
from dart_train.rollout.settings.rollout_config import RolloutConfig

SOURCE = "planner"
_log = logging.getLogger(__name__)


class Planner:
    """Keeps the scheduler's plans and the workers' admission up to date."""

    def __init__(
        self, config: RolloutConfig, data: Recording, scheduler: Scheduler, workers: Workers, availability: Availability
    ) -> None:
        self._data = data
        self._scheduler = scheduler
        self._workers = workers
        self._availability = availability
        self._config, self._interval = config, config.admission_interval_s
        self._limits = {entry.id: entry.max_steps or config.max_steps for entry in config.tasks}

    async def run(self) -> None:
        """Update the plan until cancelled.

        Raises:
            DataError: if the database was away for too long.
        """
        idle = idle_workers(self._config.workers, self._config.group_size, self._data.config)
        if idle and not self._scheduler.waits_for_batches:
            _log.info("%s", idle)
        while True:
            pause = self._interval
            try:
                await self.ask()
                self._availability.succeeded(SOURCE)
            except DataError as error:
                self._workers.room = 0
                pause = max(pause, self._availability.failed(error, SOURCE))
                if self._availability.timed_out:
                    raise
            if self._workers.admitted:
                self._workers.wake()
            await asyncio.sleep(pause)

    async def ask(self) -> None:
        """Ask the data manager once for closed groups, room and plans, and pass them to scheduler and workers."""
        closed = await asyncio.to_thread(self._data.closed_groups, self._scheduler.open_keys)
        if given_up := self._scheduler.end_groups(closed):
            _log.info("%d rollouts of groups that expired or were closed are not begun", given_up)
        before = self._scheduler.opened
        waiting = self._workers.recorder.pending  # played, but not in the database yet
        groups, unfinished = self._scheduler.backlog(self._workers.breakers.held())
        groups += waiting // self._config.group_size
        room = await asyncio.to_thread(self._data.room, groups, unfinished + waiting)
        plans = await asyncio.to_thread(self._data.plans, self._limits)
        for task_id, plan in plans.items():
            self._scheduler.plan(task_id, **asdict(plan))
        opened = self._scheduler.opened - before  # in the meantime
        self._workers.room = math.inf if room is None else room - opened
