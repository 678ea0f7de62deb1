"""ServingRecord: records in the run's data which version each engine replica serves, whenever that changes.

Invariants:
    - A replica of this service is identified by its host as well, which separates it from replicas of services on other
      machines. A replica that was started elsewhere is identified by its address, which all services share.
    - While the database is away, changes are recorded later. The record of a killed service stands until its next life.
"""

import asyncio
import socket
from collections.abc import Callable

from dart_train.core.train_errors import DataError
from dart_train.rollout.fleet.engine_pool import EnginePool


class ServingRecord:
    """The versions of a pool's replicas as last recorded by `Recording.serving`, which may block and raise."""

    def __init__(self, serving: Callable[[str, int | None], None], pool: EnginePool, interval_s: float = 0.2) -> None:
        self._serving = serving
        self._pool = pool
        self._interval = interval_s
        self._told: dict[str, int | None] = {}

    async def run(self) -> None:
        """Record changes as they come, until cancelled."""
        while True:
            for replica in self._pool.replicas:
                name = f"{replica.name}@{socket.gethostname()}" if replica.spec.owned else replica.url
                await self._tell(name, replica.version if replica.usable else None)
            await asyncio.sleep(self._interval)

    async def end(self) -> None:
        """Record that nothing is served any more."""
        for name in self._told:
            await self._tell(name, None)

    async def _tell(self, name: str, version: int | None) -> None:
        if self._told.get(name) == version:
            return
        try:
            await asyncio.to_thread(self._serving, name, version)
        except DataError:
            return  # the next look tries again
        self._told[name] = version
