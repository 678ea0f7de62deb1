"""BatchGate: lets batch-wise rollouts go on once their batch was trained on and all engines serve what came of it."""

import asyncio
from collections.abc import Callable, Iterable

from dart_gym.core.errors import ConfigurationError
from dart_train.core.availability import Availability
from dart_train.core.data_states import RolloutState
from dart_train.core.train_errors import DataError
from dart_train.data.manager.recording import Recording
from dart_train.rollout.schedule.group_batches import Batches, trained_and_served
from dart_train.rollout.settings.rollout_config import Mode, RolloutConfig

POLL_S = 0.02  # between two looks: desktops stand still meanwhile


def make_batches(config: RolloutConfig, data: Recording) -> Batches | None:
    """The batches of a configuration; None where nothing waits for batches. Raises `ConfigurationError`."""
    if config.mode is not Mode.BATCH:
        return None
    sizes = data.config
    try:
        return Batches(sizes.batch_groups, over_provision=config.over_provision, window=sizes.max_staleness)
    except ValueError as error:
        raise ConfigurationError(f"rollout.over_provision and data.curation.max_staleness: {error}") from error


class BatchGate:
    """Watches a run's data and engines for the end of each batch."""

    def __init__(
        self,
        batches: Batches,
        data: Recording,
        *,
        pending: Callable[[], int],
        served: Callable[[], Iterable[int]],
        on_closed: Callable[[], None],
        availability: Availability,
    ) -> None:
        self._availability = availability
        self._batches = batches
        self._data = data
        self._pending = pending
        self._served, self._on_closed = served, on_closed

    async def run(self) -> None:
        """Close batches until cancelled; a database that is away is asked again."""
        while True:
            # in this order: what is recorded becomes ready, then leased, then a version, then served
            if self._batches.complete and not self._pending():
                try:
                    over = await asyncio.to_thread(self._is_over)
                    self._availability.succeeded("gate")
                except DataError as error:
                    self._availability.failed(error, "gate")
                    over = False
                if over:
                    self._batches.close()
                    self._on_closed()
            await asyncio.sleep(POLL_S)

    def _is_over(self) -> bool:
        ready, leased = self._data.ready()[0], self._data.counts()[RolloutState.LEASED]
        newest = self._data.newest_checkpoint()
        return trained_and_served(
            target=self._batches.target,
            ready=ready,
            leased=leased,
            newest=newest.version if newest else None,
            served=self._served(),
        )
