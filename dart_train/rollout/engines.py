"""EnginePool: replicas of an engine behind one `Engine`: least load, stickiness, health, restart, rolling updates.

Invariants:
    - A request that a replica does not answer is sent to another one (or the same, restarted): no step is lost to
      a dead replica. Only a request that living replicas refuse `MAX_REFUSALS` times, or that finds no replica
      for `patience_s`, fails with `EngineError`.
    - A replica is served to requests only after it answered; one that fails is looked at at once, and started again
      with the newest weights that a replica is known to have loaded.
    - All state is changed on the event loop; routing itself is the pure function `route`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dart_agent.engines.base import EngineError, EngineInfo, Generation, Prompt, Sampling
from dart_train.rollout.config import EngineConfig
from dart_train.rollout.replica import ENGINE_PROGRAM, Replica, ReplicaSpec, ReplicaState, Weights

_log = logging.getLogger(__name__)
STICKY_SLACK = 2
MAX_REFUSALS = 3
FIRST_BACKOFF_S = 0.25
FAILED_LOOKS = 3
FAILED_GRACE_S = 0.3


@dataclass(frozen=True, slots=True)
class Load:
    """What routing looks at."""

    name: str
    state: ReplicaState
    in_flight: int


def route(loads: Sequence[Load], sticky: str | None, slack: int = STICKY_SLACK) -> int | None:
    """Choose a replica for a request. Pure.

    READY replicas go before UPDATING ones; among them the last one of the episode (its caches hold the episode's
    images) unless it has more than `slack` requests above the least loaded; else the least loaded, the first of equals.

    Returns:
        Index into `loads`, None when no replica is usable.
    """
    for state in (ReplicaState.READY, ReplicaState.UPDATING):
        usable = [index for index, load in enumerate(loads) if load.state is state]
        if usable:
            best = min(usable, key=lambda index: loads[index].in_flight)
            for index in usable:
                if loads[index].name == sticky and loads[index].in_flight - loads[best].in_flight <= slack:
                    return index
            return best
    return None


def backoff(failures: int, longest: float) -> float:
    """Seconds to wait after the n-th failure in a row (from 1): 0.25, 0.5, 1, ... up to `longest`. Pure."""
    return min(longest, FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 30))


class EnginePool:
    """An `Engine` made of replicas. Use as an async context manager, within one event loop.

    Args:
        config: replicas, time limits.
        weights: what replicas start with.
        directory: of the replicas' sockets (a short path).
        log_dir: of their logs; None for none.
        program: the engine server to start; see `ReplicaSpec.program`.
    """

    def __init__(
        self,
        config: EngineConfig,
        weights: Weights,
        *,
        directory: str | Path,
        log_dir: str | Path | None = None,
        program: tuple[str, ...] = ENGINE_PROGRAM,
    ) -> None:
        self.config = config
        self.weights = weights
        self.reissued = 0
        self.replicas = [Replica(spec) for spec in _specs(config, Path(directory), log_dir, program)]
        self._keepers: list[asyncio.Task[None]] = []
        self._usable = asyncio.Event()

    async def __aenter__(self) -> EnginePool:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start all replicas and return when the first one answers.

        Raises:
            EngineError: none did within `start_timeout_s`.
        """
        self._keepers = [asyncio.create_task(self._keep(replica), name=replica.name) for replica in self.replicas]
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                await self._usable.wait()
        except TimeoutError:
            reasons = "; ".join(f"{replica.name}: {replica.why_down or 'no answer'}" for replica in self.replicas)
            await self.close()
            raise EngineError(
                f"no engine replica answered within {self.config.start_timeout_s:.0f} s ({reasons})"
            ) from None

    async def close(self) -> None:
        """End all replicas that were started here. Idempotent."""
        keepers, self._keepers = self._keepers, []
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await asyncio.gather(*(replica.shut_down() for replica in self.replicas))

    # --- Engine -------------------------------------------------------------------------------------------------

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Sample one response on any replica. Raises `EngineError` as the class says."""
        return (await self.generate_near(prompt, sampling, None))[0]

    async def generate_near(self, prompt: Prompt, sampling: Sampling, sticky: str | None) -> tuple[Generation, str]:
        """Like `generate`, with a replica to prefer; also returns the name of the one that answered."""
        deadline = time.monotonic() + self.config.patience_s
        refusals = 0
        while True:
            replica = await self._choose(sticky, deadline)
            try:
                return await self._ask(replica, prompt, sampling), replica.name
            except EngineError as error:
                self.reissued += 1
                sticky = None
                if await self._examine(replica, error):
                    refusals += 1
                    if refusals >= MAX_REFUSALS:
                        raise EngineError(f"refused {refusals} times, at last by {replica.name}: {error}") from error

    async def update_weights(self, path: str, version: int) -> None:
        """Load weights into every usable replica, one after the other."""
        for replica in self.replicas:
            if replica.usable:
                await self.update(replica, Weights(path, version))

    async def info(self) -> EngineInfo:
        """The pool's state; `version` is the oldest that a usable replica serves."""
        versions = [replica.version for replica in self.replicas if replica.usable]
        return EngineInfo(
            name="pool",
            model=self.weights.path,
            version=min(versions, default=self.weights.version),
            in_flight=sum(replica.in_flight for replica in self.replicas),
            requests=sum(replica.requests for replica in self.replicas),
        )

    # --- weights ------------------------------------------------------------------------------------------------

    async def update(self, replica: Replica, weights: Weights) -> None:
        """Load weights into one replica and verify that it serves them.

        Raises:
            EngineError: it did not; the caller decides what becomes of the replica.
        """
        if replica.engine is None or not replica.usable:
            raise EngineError(f"{replica.name} is {replica.state}")
        replica.state = ReplicaState.UPDATING
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                await replica.engine.update_weights(weights.path, weights.version)
            info = await replica.look(self.config.request_timeout_s)
            if info.version != weights.version:
                raise EngineError(f"{replica.name} says version {info.version} after an update to {weights.version}")
            if weights.version >= self.weights.version:
                self.weights = weights
        except TimeoutError:
            raise EngineError(f"{replica.name} did not load {weights.path} in time") from None
        finally:
            if replica.state is ReplicaState.UPDATING:
                replica.state = ReplicaState.READY

    def quarantine(self, replica: Replica, reason: str) -> None:
        """Take a replica out of service; its keeper starts it again."""
        if replica.usable:
            replica.failures += 1
            replica.why_down = reason
            self._set(replica, ReplicaState.DOWN)
            replica.alarm.set()
            _log.warning("engine %s is taken out of service: %s", replica.name, reason)

    # --- requests -----------------------------------------------------------------------------------------------

    async def _choose(self, sticky: str | None, deadline: float) -> Replica:
        while True:
            index = route([Load(r.name, r.state, r.in_flight) for r in self.replicas], sticky)
            if index is not None:
                return self.replicas[index]
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await self._usable.wait()
            except TimeoutError:
                reasons = "; ".join(f"{replica.name}: {replica.why_down}" for replica in self.replicas)
                raise EngineError(f"no engine replica for {self.config.patience_s:.0f} s ({reasons})") from None

    async def _ask(self, replica: Replica, prompt: Prompt, sampling: Sampling) -> Generation:
        if replica.engine is None:
            raise EngineError(f"{replica.name} is {replica.state}")
        replica.in_flight += 1
        try:
            async with asyncio.timeout(self.config.request_timeout_s):
                generation = await replica.engine.generate(prompt, sampling)
        except TimeoutError:
            self.quarantine(replica, f"no response within {self.config.request_timeout_s:.0f} s")
            raise EngineError(f"{replica.name} took too long") from None
        finally:
            replica.in_flight -= 1
        replica.requests += 1
        return generation

    async def _examine(self, replica: Replica, error: EngineError) -> bool:
        """After a failed request: whether the replica lives, so that the request itself may be what is wrong."""
        if not replica.usable:
            return False
        try:
            await replica.look(min(5.0, self.config.request_timeout_s))
        except EngineError as silence:
            self.quarantine(replica, f"{error}; then {silence}")
            return False
        return True

    # --- keeping replicas alive ---------------------------------------------------------------------------------

    async def _keep(self, replica: Replica) -> None:
        """Start a replica, watch it, start it again when it fails; until cancelled."""
        try:
            while True:
                replica.alarm.clear()
                self._set(replica, ReplicaState.STARTING)
                try:
                    replica.launch(self.weights)
                    info = await replica.until_ready(self.config.start_timeout_s)
                    _log.info("engine %s serves version %d of %s", replica.name, info.version, info.model)
                    self._set(replica, ReplicaState.READY)
                    await self._watch(replica)
                except (EngineError, OSError) as error:
                    if replica.state is not ReplicaState.DOWN:
                        replica.failures += 1
                        replica.why_down = str(error)
                        _log.warning("engine %s: %s", replica.name, error)
                    self._set(replica, ReplicaState.DOWN)
                await replica.shut_down(FAILED_GRACE_S)
                await asyncio.sleep(backoff(replica.failures, self.config.max_backoff_s))
                replica.restarts += 1
        finally:
            self._set(replica, ReplicaState.DOWN)

    async def _watch(self, replica: Replica) -> None:
        """Return when the replica is taken out of service; raise `EngineError` when it is found dead."""
        silent = 0
        while replica.usable:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.health_interval_s):
                    await replica.alarm.wait()
            if not replica.usable:
                return
            if replica.died:
                raise EngineError("its process has ended")
            try:
                await replica.look(self.config.request_timeout_s)
                silent = replica.failures = 0
            except EngineError:
                silent += 1
                if silent >= FAILED_LOOKS:
                    raise

    def _set(self, replica: Replica, state: ReplicaState) -> None:
        replica.state = state
        if any(each.usable for each in self.replicas):
            self._usable.set()
        else:
            self._usable.clear()


class EpisodeEngine:
    """The pool as one episode sees it: requests go to the same replica while that is sensible."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._last: str | None = None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Sample one response. Raises `EngineError`."""
        generation, self._last = await self._pool.generate_near(prompt, sampling, self._last)
        return generation

    async def update_weights(self, path: str, version: int) -> None:
        """Not an episode's business.

        Raises:
            EngineError: always.
        """
        raise EngineError("weights are updated through the pool")

    async def info(self) -> EngineInfo:
        """The pool's state."""
        return await self._pool.info()

    async def close(self) -> None:
        """Nothing is held."""


def _specs(
    config: EngineConfig, directory: Path, log_dir: str | Path | None, program: tuple[str, ...]
) -> list[ReplicaSpec]:
    if config.urls:
        return [ReplicaSpec(f"r{index}", url, owned=False) for index, url in enumerate(config.urls)]
    return [
        ReplicaSpec(
            name=f"r{index}",
            url=f"ws+unix://{directory / f'engine-{index}.sock'}",
            owned=True,
            threads=config.threads,
            max_batch=config.max_batch,
            log=Path(log_dir) / f"engine-{index}.log" if log_dir else None,
            program=program,
        )
        for index in range(config.replicas)
    ]
