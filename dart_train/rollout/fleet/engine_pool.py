"""EnginePool: the replicas of an engine behind one interface, with least-load routing, stickiness and retries.

Invariants:
    - A request that a replica does not answer is sent to another one, or to the same one after a restart, so no step is
      lost to a dead replica. A request fails with `EngineError` only if it is refused as wrong, if living replicas fail
      at it `MAX_REFUSALS` times, or if it finds no replica for `unavailable_timeout_s`.
    - `ReplicaLife` handles everything about a single replica; the pool routes, counts and starts.
    - All state is changed on the event loop; decisions are the pure functions of `request_routing` and `concurrency`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path

from dart_agent.engines.base.engine import EngineBusy, EngineError, Generation, Prompt, Sampling
from dart_agent.engines.vllm.weight_loading import FromSender, WeightSender
from dart_gym.utils.backoff import backoff
from dart_train.rollout.fleet.replica import EngineNodes, Locks, Replica, ReplicaSpec, UpdateLocks, Weights
from dart_train.rollout.fleet.replica_life import Fleet, ReplicaLife
from dart_train.rollout.fleet.request_routing import Verdict, judge, route
from dart_train.rollout.settings.rollout_config import EngineConfig, EnginePlaces, SyncConfig

_log = logging.getLogger(__name__)
MAX_REFUSALS = 3
WAIT_SAID_S = 20.0
FIRST_BUSY_PAUSE_S, LONGEST_BUSY_PAUSE_S = 0.25, 2.0


class EnginePool:
    """Replicas of an engine. Use as an async context manager, within one event loop.

    Args:
        directory: directory for the replicas' sockets and temporary files (a short path).
        locks: locks on updates, for services that share replicas by URL; None if no other service does.
        places: GPUs of the replicas that are started here.
        on_wait: called with what the start waits for, and with "" once it is over.
        nodes: starts the servers on nodes of a cluster; None starts them here.

    Attributes:
        reissued: requests that were sent again.
        queued: requests that wait for a replica now.
    """

    def __init__(
        self,
        config: EngineConfig,
        weights: Weights,
        *,
        directory: str | Path,
        log_dir: str | Path | None = None,
        sync: SyncConfig = SyncConfig(),
        locks: Locks | None = None,
        places: EnginePlaces = EnginePlaces(),
        on_wait: Callable[[str], None] = lambda text: None,
        nodes: EngineNodes | None = None,
    ) -> None:
        self.config = config
        self.sync = sync
        self._on_wait = on_wait
        self.fleet = Fleet(config, UpdateLocks(locks, sync.lease_s), weights)
        self.sender = _weight_sender(sync, log_dir)
        loading = FromSender(self.sender) if self.sender is not None else None
        self.replicas = []
        for index, (kind, url) in enumerate(config.servers(places)):
            gpus = places.gpus[index] if places.gpus and not url else None
            log = Path(log_dir) / f"engine-{index}.log" if log_dir and not url else None
            spec = ReplicaSpec(index, kind, url, Path(directory), log, config, sync, gpus, places.memory, nodes)
            self.replicas.append(Replica(spec, loading))
        self.lives = {replica.name: ReplicaLife(replica, self.fleet) for replica in self.replicas}
        self.reissued = self.queued = 0
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> EnginePool:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start all replicas; return when the first one answers.

        Raises:
            EngineError: if none answers within `start_timeout_s`.
        """
        limit = self.config.start_timeout_s
        began = time.monotonic()
        deadline = began + limit
        self._running = [asyncio.create_task(life.keep(), name=name) for name, life in self.lives.items()]
        if self.sender is not None:
            self._running.append(asyncio.create_task(self._warm(self.sender), name="sender of weights"))
        since = time.strftime("%T")
        while not any(replica.usable for replica in self.replicas):
            if time.monotonic() >= deadline:
                await self.close()
                raise EngineError(f"no engine replica answered within {limit:.0f} s ({self._reasons()})")
            await self.fleet.changed.wait(min(deadline, time.monotonic() + WAIT_SAID_S))
            if time.monotonic() >= began + WAIT_SAID_S:  # an engine on a CPU takes some seconds: not worth a message
                self._on_wait(f"no engine answers since {since}; it may take {limit:.0f} s ({self._reasons()})")
        self._on_wait("")

    async def _warm(self, sender: WeightSender) -> None:
        try:
            await sender.warm(self.config.start_timeout_s)
        except EngineError as error:
            _log.error("new weights will not get to the engines: %s", error)

    async def close(self) -> None:
        """Stop all replicas that were started here. Idempotent."""
        running, self._running = self._running, []
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*(replica.shut_down() for replica in self.replicas))
        if self.sender is not None:
            await self.sender.close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Sample one response on any replica. Raises `EngineError`; see the invariants above."""
        return (await self.generate_near(prompt, sampling, None))[0]

    async def generate_near(self, prompt: Prompt, sampling: Sampling, sticky: str | None) -> tuple[Generation, str]:
        """Like `generate`, but prefer the named replica; also return the name of the replica that answered."""
        deadline = time.monotonic() + self.config.unavailable_timeout_s
        refusals, busy = 0, 0
        failed: set[str] = set()
        while True:
            name = await self._choose(sticky, failed, deadline)
            life = self.lives[name]
            try:
                generation = await life.ask(prompt, sampling)
            except EngineError as error:
                verdict = judge(error)
                if verdict is Verdict.FINAL:
                    raise
                self.reissued += 1
                sticky = None
                failed.add(name)
                if verdict is Verdict.BUSY:
                    busy += 1
                    if time.monotonic() >= deadline:
                        waited = self.config.unavailable_timeout_s
                        raise EngineBusy(f"busy for {waited:.0f} s: {error}") from error
                    life.give_less()
                    await asyncio.sleep(backoff(busy, FIRST_BUSY_PAUSE_S, LONGEST_BUSY_PAUSE_S))
                elif not await life.is_to_blame(error, late=verdict is Verdict.LATE):
                    refusals += 1
                    if refusals >= MAX_REFUSALS:
                        raise EngineError(f"refused {refusals} times, at last by {name}: {error}") from error
            else:
                self.fleet.control = prompt, dataclasses.replace(sampling, max_tokens=1, given_ids=())
                return generation, name

    async def _choose(self, sticky: str | None, avoid: set[str], deadline: float) -> str:
        """Return the name of the replica for a request, after waiting until there is one."""
        while True:
            replica = route(self.replicas, sticky, avoid=avoid)
            if replica is not None:
                return replica.name
            if time.monotonic() >= deadline:
                full = any(replica.usable for replica in self.replicas)
                what = "all engine replicas were full" if full else "no engine replica"
                raise EngineError(f"{what} for {self.config.unavailable_timeout_s:.0f} s ({self._reasons()})")
            self.queued += 1
            try:
                await self.fleet.changed.wait(deadline)
            finally:
                self.queued -= 1

    def _reasons(self) -> str:
        return "; ".join(f"{replica.name}: {replica.why_down or 'no answer'}" for replica in self.replicas)


class EpisodeEngine:
    """An `Engine` for one episode, which sends all requests to the same replica while that is sensible."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._last: str | None = None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Sample one response. Raises `EngineError`."""
        generation, self._last = await self._pool.generate_near(prompt, sampling, self._last)
        return generation


def _weight_sender(sync: SyncConfig, log_dir: str | Path | None) -> WeightSender | None:
    """Return the process that streams weights, not started yet; None if replicas read the weights themselves."""
    if sync.transfer not in ("nccl", "tcp"):
        return None
    return WeightSender(
        sync.transfer,
        python=sync.python,
        device=sync.device,
        address=sync.address,
        buffer_bytes=int(sync.buffer_mib * 2**20),
        log=Path(log_dir) / "sender.log" if log_dir else None,
    )
