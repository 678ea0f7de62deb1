"""Planner: asks the data manager now and then whether another group may be opened, and how large and how long."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from dart_train.core.outage import Outage
from dart_train.core.train_errors import DataError
from dart_train.data.manager.data_manager import DataManager
from dart_train.rollout.play.rollout_workers import Slots
from dart_train.rollout.schedule.scheduler import Scheduler
from dart_train.rollout.settings.rollout_config import RolloutConfig

SOURCE = "planner"


class Planner:
    """Keeps the scheduler's plans and the slots' admission up to date.

    Args:
        config: of the service.
        data: the run's data manager.
        scheduler: gets the plans.
        slots: get the admission.
        outage: of the database. While it is away no group is opened; those that are open go on.
    """

    def __init__(
        self, config: RolloutConfig, data: DataManager, scheduler: Scheduler, slots: Slots, outage: Outage
    ) -> None:
        self._data, self._scheduler, self._slots, self._outage = data, scheduler, slots, outage
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
                self._outage.succeeded(SOURCE)
            except DataError as error:
                self._slots.admitted = False
                pause = max(pause, self._outage.failed(error, SOURCE))
                if self._outage.over:
                    raise
            if self._slots.admitted:
                self._slots.wake()
            await asyncio.sleep(pause)

    async def _ask(self) -> None:
        admitted = await asyncio.to_thread(self._data.admit, self._scheduler.unfinished)
        plans = await asyncio.to_thread(self._data.plans, self._limits)
        for task_id, plan in plans.items():
            self._scheduler.plan(task_id, **asdict(plan))
        self._slots.admitted = admitted
