"""BatchGate: batch-wise rollouts continue once their batch was trained on and all engines serve the new weights."""

import asyncio

from dart_lab.modes.group_batches import Batches, trained_and_served
from dart_train.core.data_states import RolloutState
from dart_train.core.train_errors import DataError
from dart_train.rollout.schedule.scheduler import Surroundings

POLL_S = 0.02  # between two looks: desktops stand still meanwhile


class BatchGate:
    """Watches a run's data and engines for the end of each batch."""

    def __init__(self, batches: Batches, around: Surroundings) -> None:
        self._batches = batches
        self._around = around

    async def run(self) -> None:
        """Close batches until cancelled; a database that is away is asked again."""
        while True:
            # in this order: what is recorded becomes ready, then leased, then a version, then served
            if self._batches.complete and not self._around.pending():
                try:
                    over = await asyncio.to_thread(self._is_over)
                    self._around.availability.succeeded("gate")
                except DataError as error:
                    self._around.availability.failed(error, "gate")
                    over = False
                if over:
                    self._batches.close()
                    self._around.wake()
            await asyncio.sleep(POLL_S)

    def _is_over(self) -> bool:
        ready, leased = self._around.data.ready()[0], self._around.data.counts()[RolloutState.LEASED]
        newest = self._around.data.newest_checkpoint()
        return trained_and_served(
            target=self._batches.target,
            ready=ready,
            leased=leased,
            newest=newest.version if newest else None,
            served=self._around.served(),
        )
