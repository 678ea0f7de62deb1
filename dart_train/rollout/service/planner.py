"""Planner: asks the data manager now and then whether another group may be opened, and how large and how long."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from dart_train.core.availability import Availability
from dart_train.core.train_errors import DataError
from dart_train.data.manager.recording import Recording
from dart_train.rollout.play.rollout_workers import Workers
from dart_train.rollout.schedule.scheduler import Scheduler
from dart_train.rollout.settings.rollout_config import RolloutConfig

SOURCE = "planner"


class Planner:
    """Keeps the scheduler's plans and the workers' admission up to date.

    Args:
        config: configuration of the service.
        data: the run's data manager.
        scheduler: scheduler that gets the plans.
        workers: workers that are told of the admission.
        availability: availability of the database. While it is away no group is opened; those that are open go on.
    """

    def __init__(
        self,
        config: RolloutConfig,
        data: Recording,
        scheduler: Scheduler,
        workers: Workers,
        availability: Availability,
    ) -> None:
        self._data, self._scheduler, self._workers, self._availability = data, scheduler, workers, availability
        self._interval = config.admission_interval_s
        self._limits = {entry.id: entry.max_steps or config.max_steps for entry in config.tasks}

    async def run(self) -> None:
        """Ask until cancelled.

        Raises:
            DataError: the database stayed away for too long.
        """
        while True:
            pause = self._interval
            try:
                await self._ask()
                self._availability.succeeded(SOURCE)
            except DataError as error:
                self._workers.admitted = False
                pause = max(pause, self._availability.failed(error, SOURCE))
                if self._availability.timed_out:
                    raise
            if self._workers.admitted:
                self._workers.wake()
            await asyncio.sleep(pause)

    async def _ask(self) -> None:
        admitted = await asyncio.to_thread(self._data.admit, self._scheduler.unfinished)
        plans = await asyncio.to_thread(self._data.plans, self._limits)
        for task_id, plan in plans.items():
            self._scheduler.plan(task_id, **asdict(plan))
        self._workers.admitted = admitted
