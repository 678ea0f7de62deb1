"""EnginePool: replicas of an engine behind one `Engine`: least load, stickiness, health, restart, rolling updates.

Invariants:
    - A request that a replica does not answer is sent to another one (or the same, restarted): no step is lost to
      a dead replica. Only a request that is refused as wrong, that living replicas fail at `MAX_REFUSALS` times, or
      that finds no replica for `unavailable_timeout_s`, fails with `EngineError`.
    - A replica gets requests only after it answered, serves the pool's weights by its own word and, where they have a
      fingerprint, by its log-probabilities, and can still answer a request that was answered before. One that fails
      is looked at at once, taken out of service (`quarantine`), and started again or connected to again, each time
      after a longer pause, with the newest weights that a replica is known to have loaded: a circuit breaker.
    - A response whose versions are not those that its replica can have had is never handed on.
    - All state is changed on the event loop; decisions are the pure functions of `routing` and `concurrency`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter
from pathlib import Path

from dart_agent.engines.base.engine import (
    BadResponse,
    EngineBusy,
    EngineError,
    EngineInfo,
    EngineMismatch,
    Generation,
    Prompt,
    Sampling,
    UpdateNotBegun,
)
from dart_agent.engines.vllm.vllm_loading import FromSender
from dart_agent.engines.vllm.weight_sender import WeightSender
from dart_train.rollout.fleet.concurrency import shrink
from dart_train.rollout.fleet.episode_engine import EpisodeEngine as EpisodeEngine
from dart_train.rollout.fleet.keeping import keep
from dart_train.rollout.fleet.replica import Replica, ReplicaState, Weights
from dart_train.rollout.fleet.replica_specs import replica_specs, weight_sender
from dart_train.rollout.fleet.request_routing import Load, Verdict, backoff, judge, route
from dart_train.rollout.fleet.server_programs import ENGINE_PROGRAM
from dart_train.rollout.fleet.update_locks import Locks, UpdateLocks
from dart_train.rollout.fleet.wakeup import Wakeup
from dart_train.rollout.fleet.weight_check import check_weights, load_weights
from dart_train.rollout.settings.rollout_config import EngineConfig, SyncConfig

_log = logging.getLogger(__name__)
MAX_REFUSALS = 3
MAX_ERRORS = 3
BUSY_PAUSE_S = 2.0


class EnginePool:
    """An `Engine` made of replicas. Use as an async context manager, within one event loop.

    Args:
        config: replicas, time limits.
        weights: what replicas start with.
        directory: of the replicas' sockets (a short path).
        log_dir: of their logs; None for none.
        program: our engine server; see `Program.argv`.
        sync: how weights get into the replicas.
        locks: between services that share replicas by URL; None where there is no other.

    Attributes:
        weights: the newest that a replica is known to have loaded.
        published: the newest that there are, known to be sound; another service may have loaded them already.
        reissued: requests that were sent again.
        faults: times that replicas went out of service, by what was wrong: "died", "silent" (no answer), "late"
            (a request took too long), "failed" (errors), "stale" (another version than it was given), "weights"
            (other log-probabilities than the published ones), "update", "start".
        queued: requests that wait for a replica now.
    """

    def __init__(
        self,
        config: EngineConfig,
        weights: Weights,
        *,
        directory: str | Path,
        log_dir: str | Path | None = None,
        program: tuple[str, ...] = ENGINE_PROGRAM,
        sync: SyncConfig = SyncConfig(),
        locks: Locks | None = None,
    ) -> None:
        self.config, self.sync = config, sync
        self.weights = weights
        self.published: Weights | None = None
        self.reissued = 0
        self.faults: Counter[str] = Counter()
        self.queued = 0
        self._sender = weight_sender(sync, log_dir)
        stream = FromSender(self._sender) if self._sender is not None else None
        specs = replica_specs(config, Path(directory), log_dir, program, sync)
        self.replicas = [Replica(spec, stream=stream) for spec in specs]
        self._keepers: list[asyncio.Task[None]] = []
        self._usable = asyncio.Event()
        self._changed = Wakeup()
        self._updating = asyncio.Semaphore(config.updates_at_once)
        self._locks = UpdateLocks(locks, sync.lease_s)
        self._control: tuple[Prompt, Sampling] | None = None  # a request that was answered, cut to one token

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
        self._keepers = [asyncio.create_task(keep(self, replica), name=replica.name) for replica in self.replicas]
        if self._sender is not None:
            self._keepers.append(asyncio.create_task(self._warm(self._sender), name="sender of weights"))
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                await self._usable.wait()
        except TimeoutError:
            await self.close()
            raise EngineError(
                f"no engine replica answered within {self.config.start_timeout_s:.0f} s ({self._reasons()})"
            ) from None

    async def _warm(self, sender: WeightSender) -> None:
        try:
            await sender.warm(self.config.start_timeout_s)
        except EngineError as error:
            _log.error("new weights will not get to the engines: %s", error)

    async def close(self) -> None:
        """End all replicas that were started here. Idempotent."""
        keepers, self._keepers = self._keepers, []
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await asyncio.gather(*(replica.shut_down() for replica in self.replicas))
        if self._sender is not None:
            await self._sender.close()

    # --- Engine -------------------------------------------------------------------------------------------------

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Sample one response on any replica. Raises `EngineError` as the class says."""
        return (await self.generate_near(prompt, sampling, None))[0]

    async def generate_near(self, prompt: Prompt, sampling: Sampling, sticky: str | None) -> tuple[Generation, str]:
        """Like `generate`, with a replica to prefer; also returns the name of the one that answered."""
        deadline = time.monotonic() + self.config.unavailable_timeout_s
        refusals, busy = 0, 0
        failed: set[str] = set()
        while True:
            replica = await self._choose(sticky, failed, deadline)
            try:
                generation = await self._ask(replica, prompt, sampling)
            except EngineError as error:
                verdict = judge(error)
                if verdict is Verdict.FINAL:
                    raise
                self.reissued += 1
                sticky = None
                failed.add(replica.name)
                if verdict is Verdict.BUSY:
                    busy += 1
                    await self._give_way(replica, busy, error, deadline)
                elif not await self._is_to_blame(replica, verdict, error):
                    refusals += 1
                    if refusals >= MAX_REFUSALS:
                        raise EngineError(f"refused {refusals} times, at last by {replica.name}: {error}") from error
            else:
                self._control = prompt, dataclasses.replace(sampling, max_tokens=1)
                return generation, replica.name

    async def update_weights(self, path: str, version: int) -> None:
        """Load weights into every ready replica, one after the other."""
        for replica in self.replicas:
            if replica.state is ReplicaState.READY:
                await self.update(replica, Weights(path, version))

    async def info(self) -> EngineInfo:
        """The pool's state; `version` is the oldest that a usable replica serves."""
        versions = [replica.version for replica in self.replicas if replica.usable]
        infos = [replica.info for replica in self.replicas if replica.usable and replica.info is not None]
        return EngineInfo(
            name="pool",
            model=self.weights.path,
            version=min(versions, default=self.weights.version),
            in_flight=sum(replica.in_flight for replica in self.replicas),
            requests=sum(replica.requests for replica in self.replicas),
            waiting=self.queued + sum(info.waiting for info in infos),
            kv_use=max((info.kv_use for info in infos), default=0.0),
        )

    # --- weights ------------------------------------------------------------------------------------------------

    async def update(self, replica: Replica, weights: Weights) -> None:
        """Load weights into one ready replica and verify that it serves them; at most `updates_at_once` do so.

        Raises:
            EngineBusy: it is not ready, or another service updates it; nothing was done.
            UpdateNotBegun: the weights could not be sent; it goes on with those that it has.
            EngineError: it does not; it is out of service then, and serves nothing before it was started or loaded
                again with the weights before.
        """
        async with self._updating:
            if replica.engine is None or replica.state is not ReplicaState.READY:
                raise EngineBusy(f"{replica.name} is {replica.state}")
            begun = False
            try:
                async with self._locks.held(replica):
                    begun = True
                    await self._load(replica, weights)
            except UpdateNotBegun:
                if replica.usable:
                    self._set(replica, ReplicaState.READY)
                raise
            except EngineError as error:
                if begun:
                    replica.tainted = True
                    self.quarantine(replica, f"update to version {weights.version} failed: {error}", "update")
                raise
            if replica.state is not ReplicaState.UPDATING:  # taken out of service meanwhile
                raise EngineError(f"{replica.name} is {replica.state}: {replica.why_down}")
            self._set(replica, ReplicaState.READY)
            self._loaded(weights)

    async def _load(self, replica: Replica, weights: Weights) -> None:
        if self.config.update == "drain" or (self.config.update is None and replica.is_vllm):
            await self._drain(replica)
        self._set(replica, ReplicaState.UPDATING)
        await load_weights(replica, weights, self.config)

    def _loaded(self, weights: Weights) -> None:
        """A replica is known to have loaded them: others are started with them from now on."""
        if weights.version >= self.weights.version or not Path(self.weights.path).is_dir():
            self.weights = weights

    async def _drain(self, replica: Replica) -> None:
        """Wait until a replica has ended its requests, at most `drain_s`: what is left then is cut off."""
        self._set(replica, ReplicaState.DRAINING)
        deadline = time.monotonic() + self.config.drain_s
        while replica.in_flight and replica.usable and time.monotonic() < deadline:
            await self._changed.wait(deadline)

    def quarantine(self, replica: Replica, reason: str, kind: str = "failed") -> None:
        """Take a replica out of service; its keeper starts it again or connects to it again."""
        if replica.usable:
            self.faults["died" if replica.died else kind] += 1
            replica.failures += 1
            replica.why_down = reason
            self._set(replica, ReplicaState.DOWN)
            replica.alarm.set()
            _log.warning("engine %s is taken out of service: %s", replica.name, reason)

    # --- requests -----------------------------------------------------------------------------------------------

    async def _choose(self, sticky: str | None, avoid: set[str], deadline: float) -> Replica:
        while True:
            loads = [Load(r.name, r.state, r.in_flight, r.concurrency.limit) for r in self.replicas]
            index = route(loads, sticky, avoid=avoid)
            if index is not None:
                return self.replicas[index]
            if time.monotonic() >= deadline:
                full = any(replica.usable for replica in self.replicas)
                what = "all engine replicas were full" if full else "no engine replica"
                raise EngineError(f"{what} for {self.config.unavailable_timeout_s:.0f} s ({self._reasons()})")
            self.queued += 1
            try:
                await self._changed.wait(deadline)
            finally:
                self.queued -= 1

    async def _ask(self, replica: Replica, prompt: Prompt, sampling: Sampling) -> Generation:
        """One request to one replica. Raises `EngineError`, also where the response is of a wrong version."""
        if replica.engine is None:
            raise EngineError(f"{replica.name} is {replica.state}")
        asked_at = replica.version
        replica.in_flight += 1
        try:
            async with asyncio.timeout(self.config.request_timeout_s):
                generation = await replica.engine.generate(prompt, sampling)
        except TimeoutError:
            self.quarantine(replica, f"no response within {self.config.request_timeout_s:.0f} s", "late")
            raise EngineError(f"{replica.name} took too long") from None
        finally:
            replica.in_flight -= 1
            self._changed.wake()
        if not replica.explains(asked_at, *generation.version) and not (
            await self._adopt(replica) and replica.explains(asked_at, *generation.version)
        ):
            oldest, newest = generation.version
            reason = f"it answered with version {oldest} to {newest}, and serves {replica.version}"
            replica.tainted = True
            self.quarantine(replica, reason, "stale")
            raise EngineMismatch(f"{replica.name}: {reason}")
        replica.requests += 1
        replica.errors = replica.failures = 0
        return generation

    async def _give_way(self, replica: Replica, times: int, error: EngineError, deadline: float) -> None:
        """Send fewer requests to a busy replica, and let some time pass before the next try."""
        if time.monotonic() >= deadline:
            raise EngineBusy(f"busy for {self.config.unavailable_timeout_s:.0f} s: {error}") from error
        replica.concurrency = shrink(replica.concurrency)
        await asyncio.sleep(backoff(times, BUSY_PAUSE_S))

    async def _is_to_blame(self, replica: Replica, verdict: Verdict, error: EngineError) -> bool:
        """After a failed request: whether the replica is what is wrong. It is out of service then.

        The experiment is another request, one that was answered before: a replica that fails at it, too, is to blame.
        """
        async with replica.examining:
            if not replica.usable:
                return True
            if verdict is Verdict.LATE:
                self.quarantine(replica, str(error), "late")
                return True
            try:
                await replica.look(min(5.0, self.config.request_timeout_s))
            except EngineError as silence:
                self._out(replica, f"{error}; then {silence}", silence)
                return True
            if self._control is None:
                replica.errors += 1
                if replica.errors >= MAX_ERRORS:
                    self.quarantine(replica, f"{replica.errors} errors in a row, at last: {error}")
                return False
            try:
                await self._ask(replica, *self._control)
            except (EngineBusy, BadResponse):
                return False
            except EngineError as second:
                self.quarantine(replica, f"{error}; then to another request {second}")
                return True
        return False

    async def _adopt(self, replica: Replica) -> bool:
        """Whether a replica serves newer weights than we gave it, and they are the newest published, by fingerprint.

        Another service that uses the replica has updated it then. Anything else is for the caller to judge.
        """
        newest, engine = self.published, replica.engine
        if newest is None or engine is None or replica.loading is not None or replica.spec.owned:
            return False
        ours = self.weights.version if replica.verified is None else replica.verified
        try:
            async with asyncio.timeout(self.config.request_timeout_s):
                serves = (await engine.info()).version
            if serves != newest.version or serves <= ours or not await check_weights(replica, newest, self.config):
                return False
        except (EngineError, TimeoutError) as error:
            _log.info("engine %s serves other weights than it was given: %s", replica.name, error)
            return False
        if replica.engine is not engine:
            return False  # it was connected to anew meanwhile
        replica.version = replica.verified = serves
        replica.tainted = False
        self._loaded(newest)
        _log.info("engine %s serves version %d, which another service gave it", replica.name, serves)
        return True

    def _out(self, replica: Replica, reason: str, error: EngineError) -> None:
        """Take a replica out of service over what a look at it showed."""
        stale = isinstance(error, EngineMismatch)
        replica.tainted = replica.tainted or stale
        self.quarantine(replica, reason, "stale" if stale else "silent")

    # --- state ------------------------------------------------------------------------------------------------

    def _set(self, replica: Replica, state: ReplicaState) -> None:
        replica.state = state
        if any(each.usable for each in self.replicas):
            self._usable.set()
        else:
            self._usable.clear()
        self._changed.wake()

    def _reasons(self) -> str:
        return "; ".join(f"{replica.name}: {replica.why_down or 'no answer'}" for replica in self.replicas)
