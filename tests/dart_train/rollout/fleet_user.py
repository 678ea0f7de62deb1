"""A rollout service's engines and weight updates as a process: `fleet_user.py DATABASE SOCKET...`; ends with its input.

It says a line for each version that all replicas are known to serve, with the faults so far.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dart_train.data.manager.data_manager import DataManager
from dart_train.data.store.database_locks import DatabaseLocks
from dart_train.rollout.fleet.engine_pool import EnginePool
from dart_train.rollout.fleet.replica import ReplicaState, Weights
from dart_train.rollout.fleet.weight_sync import WeightSync
from dart_train.rollout.settings.rollout_config import EngineConfig, SyncConfig

LEASE_S = 1.5


async def main(database: Path, urls: tuple[str, ...]) -> None:
    with DataManager.open(f"sqlite:///{database}", database.parent, "run") as data:

        def newest() -> Weights:
            row = data.newest_checkpoint()
            return Weights(row.path, row.version)

        config = EngineConfig(urls=urls, health_interval_s=0.05, max_backoff_s=0.2)
        sync = SyncConfig(lease_s=LEASE_S)
        async with EnginePool(
            config, newest(), directory=database.parent, sync=sync, locks=DatabaseLocks(data.store)
        ) as pool:
            update = asyncio.create_task(WeightSync(newest, pool, interval_s=0.05).run())
            ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
            said = -1
            while not ended.done():
                ready = all(replica.state is ReplicaState.READY for replica in pool.replicas)
                if ready and {replica.verified for replica in pool.replicas} == {newest().version} != {said}:
                    said = newest().version
                    print(said, dict(pool.fleet.faults), flush=True)
                await asyncio.sleep(0.02)
            update.cancel()
            await asyncio.gather(update, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), tuple(sys.argv[2:])))
