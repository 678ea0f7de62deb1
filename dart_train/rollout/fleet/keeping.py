"""Keeping one replica of an `EnginePool` alive: the pool's part that has a file of its own.

Invariant: a replica is READY only after it answered, serves the weights that it is to serve, and can still answer a
request that was answered before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from dart_agent.engines.base.engine import EngineError, EngineMismatch
from dart_gym.core.errors import DartGymError
from dart_train.rollout.fleet.replica import Replica, ReplicaState
from dart_train.rollout.fleet.request_routing import backoff
from dart_train.rollout.fleet.weight_check import check_weights, load_weights

if TYPE_CHECKING:
    from dart_train.rollout.fleet.engine_pool import EnginePool

_log = logging.getLogger(__name__)
FAILED_LOOKS = 3
FAILED_GRACE_S = 0.3
LONGEST_LOOK_S = 15.0


async def keep(pool: EnginePool, replica: Replica) -> None:
    """Start a replica, watch it, start it again when it fails; until cancelled."""
    try:
        while True:
            replica.alarm.clear()
            pool._set(replica, ReplicaState.STARTING)
            try:
                replica.launch(pool.weights)
                await _admit(pool, replica)
                pool._set(replica, ReplicaState.READY)
                await _watch(pool, replica)
            except (EngineError, DartGymError, OSError) as error:
                if replica.state is not ReplicaState.DOWN:
                    pool.faults["died" if replica.died and replica.usable else "start"] += 1
                    replica.failures += 1
                    replica.why_down = str(error)
                    _log.warning("engine %s: %s", replica.name, error)
                pool._set(replica, ReplicaState.DOWN)
            await replica.shut_down(FAILED_GRACE_S)
            await asyncio.sleep(backoff(replica.failures, pool.config.max_backoff_s))
            replica.restarts += 1
    finally:
        pool._set(replica, ReplicaState.DOWN)


async def _admit(pool: EnginePool, replica: Replica) -> None:
    """Wait until a replica answers and serves the pool's weights, which are loaded where it does not.

    Newer ones that another service gave it are left as they are.

    Raises:
        EngineError: it does not get there.
    """
    info = await replica.until_ready(pool.config.start_timeout_s)
    async with pool._locks.held(replica, pool.config.start_timeout_s):
        if not replica.spec.owned:  # somebody else may have updated it while we waited
            info = await replica.look(pool.config.request_timeout_s)
        weights = pool.weights
        if info.version == weights.version and not replica.tainted:
            replica.verified = info.version
            await check_weights(replica, weights, pool.config)
        elif not await pool._adopt(replica):
            await load_weights(replica, weights, pool.config)
    if pool._control is not None:
        await pool._ask(replica, *pool._control)
    _log.info("engine %s serves version %d of %s", replica.name, replica.version, info.model)


async def _watch(pool: EnginePool, replica: Replica) -> None:
    """Return when the replica is out of service; raise `EngineError` when its process has ended."""
    silent, since = 0, time.monotonic()
    while replica.usable:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pool.config.health_interval_s):
                await replica.alarm.wait()
        if not replica.usable:
            return
        if replica.died:
            raise EngineError("its process has ended")
        if replica.state is not ReplicaState.READY:
            continue  # an update has its own time limit, and the server may not answer meanwhile
        try:
            await replica.look(min(LONGEST_LOOK_S, pool.config.request_timeout_s))
        except EngineMismatch as error:
            if not await pool._adopt(replica):
                pool._out(replica, str(error), error)
        except EngineError as error:
            silent += 1
            if silent >= FAILED_LOOKS and replica.state is ReplicaState.READY:
                pool._out(replica, str(error), error)
        else:
            silent = 0
            if time.monotonic() - since > pool.config.max_backoff_s:
                replica.failures = 0
            pool._changed.wake()  # its limit may have grown
