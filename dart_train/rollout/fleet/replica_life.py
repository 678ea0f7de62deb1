"""ReplicaLife: the life of one replica in a pool: start, admission, requests, updates, restarts.

Invariants:
    - A replica is READY only after it has answered, serves the fleet's weights by its own report and, if they have a
      fingerprint, by its log-probabilities, and can still answer a request that was answered before.
    - `Replica.verified` is set only after this proof.
    - A replica that fails is examined at once, taken out of service, and restarted or reconnected, each time after a
      longer pause (a circuit breaker). It gets the newest weights that any replica is known to have loaded.
    - The pause is reset only after a replica has stayed in service for as long as the longest pause and has answered
      requests; the request that admits it does not count.
    - A response whose versions its replica cannot have had is never returned.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import Counter
from pathlib import Path

from dart_agent.engines.base.engine import (
    BadResponse,
    EngineBusy,
    EngineError,
    EngineMismatch,
    Generation,
    Prompt,
    Sampling,
    UpdateNotBegun,
)
from dart_agent.engines.base.engine_replies import checked
from dart_agent.engines.weight_stream.dart_weight_socket import NotReadError, read_facts
from dart_gym.core.errors import DartGymError
from dart_gym.utils.backoff import backoff
from dart_train.core.fingerprint import compare_fingerprint
from dart_train.core.train_errors import CheckpointError
from dart_train.rollout.fleet.concurrency import patience, shrink
from dart_train.rollout.fleet.replica import Replica, ReplicaState, UpdateLocks, Wakeup, Weights, client_errors
from dart_train.rollout.fleet.weight_files import published_fingerprint
from dart_train.rollout.settings.rollout_config import EngineConfig

_log = logging.getLogger(__name__)
FIRST_RESTART_S = 0.25
FAILED_LOOKS = 3
FAILED_GRACE_S = 0.3
LONGEST_LOOK_S = 15.0
MAX_ERRORS = 3
DRAIN_S = 60.0
"""Longest wait for running requests before an update; requests that run longer are cut off."""


@dataclasses.dataclass(slots=True)
class Fleet:
    """The state that all replicas share.

    Attributes:
        weights: the newest weights that a replica is known to have loaded.
        published: the newest sound weights; another service may have loaded them already.
        faults: number of times that replicas went out of service, by cause: "died", "silent" (no answer), "late" (a
            request took too long), "failed" (errors), "stale" (reports another version than it was given), "update" and
            "start" (one of these failed).
        control: a request that was answered, cut to one token, which any sound replica answers.
        changed: woken whenever a replica may take a request, or a further one.
    """

    config: EngineConfig
    locks: UpdateLocks
    weights: Weights
    published: Weights | None = None
    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    control: tuple[Prompt, Sampling] | None = None
    changed: Wakeup = dataclasses.field(default_factory=Wakeup)

    def loaded(self, weights: Weights) -> None:
        """Note that a replica has loaded these weights; other replicas start with them from now on."""
        if weights.version >= self.weights.version or not Path(self.weights.path).is_dir():
            self.weights = weights


class ReplicaLife:
    """The life of one replica."""

    def __init__(self, replica: Replica, fleet: Fleet) -> None:
        self.replica = replica
        self._fleet = fleet
        self._config = fleet.config

    async def keep(self) -> None:
        """Start the replica, watch it and restart it when it fails, until cancelled."""
        replica = self.replica
        try:
            while True:
                replica.alarm.clear()
                self._set(ReplicaState.STARTING)
                try:
                    await replica.launch(self._fleet.weights)
                    await self._admit()
                    self._set(ReplicaState.READY)
                    await self._watch()
                except Exception as error:  # also from the client of a plug-in, which must not end the replica for good
                    known = isinstance(error, (EngineError, DartGymError, OSError))
                    if replica.state is not ReplicaState.DOWN:
                        why = str(error) if known else f"its client failed with {type(error).__name__}: {error}"
                        self._down("died" if replica.died and replica.usable else "start", why)
                await replica.shut_down(FAILED_GRACE_S)
                await asyncio.sleep(backoff(replica.failures, FIRST_RESTART_S, self._config.max_backoff_s))
                replica.restarts += 1
        finally:
            self._set(ReplicaState.DOWN)

    async def ask(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Send one request. Raises `EngineError`, also if the response has a wrong version."""
        replica, config = self.replica, self._config
        limit = patience(config.request_timeout_s, replica.info, config.unavailable_timeout_s)
        if replica.engine is None:
            raise EngineError(f"{replica.name} is {replica.state}")
        asked_at = replica.version
        replica.in_flight += 1
        try:
            async with asyncio.timeout(limit):
                generation = checked(await replica.engine.generate(prompt, sampling), sampling)
        except BadResponse as error:
            self._count_bad(error)
            raise
        except EngineError:
            raise
        except TimeoutError:
            self.take_out(f"no response within {limit:.0f} s", "late")
            raise EngineError(f"{replica.name} took too long") from None
        except Exception as error:  # from any client, also of a plug-in: no server may end the service
            bad = BadResponse(f"{replica.name}: its client failed with {type(error).__name__}: {error}")
            self._count_bad(bad)
            raise bad from error
        finally:
            replica.in_flight -= 1
            self._fleet.changed.wake()
        if not replica.explains(asked_at, *generation.version) and not (
            await self._adopt() and replica.explains(asked_at, *generation.version)
        ):
            oldest, newest = generation.version
            wrong = EngineMismatch(f"it answered with version {oldest} to {newest}, and serves {replica.version}")
            self._wrong(str(wrong), wrong)
            raise EngineMismatch(f"{replica.name}: {wrong}")
        replica.requests += 1
        replica.errors = 0
        return generation

    def _count_bad(self, error: BadResponse) -> None:
        self.replica.bad_responses += 1
        _log.warning(
            "engine %s gave a bad response, the %d. one: %s", self.replica.name, self.replica.bad_responses, error
        )

    async def update(self, weights: Weights) -> None:
        """Load weights and verify that the replica serves them.

        Raises:
            EngineBusy: if it is not ready, does not answer, or another service updates it. Nothing was done, and this
                says nothing about the weights.
            UpdateNotBegun: if the weights could not be sent; it goes on with its present ones.
            EngineError: if the update failed. It is out of service then, and serves nothing before a restart or before
                the former weights are loaded again.
        """
        replica = self.replica
        if replica.engine is None or replica.state is not ReplicaState.READY:
            raise EngineBusy(f"{replica.name} is {replica.state}")
        begun = False
        try:
            async with self._fleet.locks.held(replica):
                await self._look_before_update()
                begun = True
                if self._config.update == "drain" or (self._config.update is None and replica.spec.drains):
                    if weights.memory:
                        await self._gathered(weights)
                    await self._drain()
                self._set(ReplicaState.UPDATING)
                await self._load(weights)
        except UpdateNotBegun:
            if replica.usable:
                self._set(ReplicaState.READY)
            raise
        except EngineError as error:
            if begun:
                replica.tainted = True
                self.take_out(f"update to version {weights.version} failed: {error}", "update")
            raise
        if replica.state is not ReplicaState.UPDATING:  # taken out of service in the meantime, for another reason
            raise EngineBusy(f"{replica.name} is {replica.state}: {replica.why_down}")
        self._set(ReplicaState.READY)
        if not weights.memory:  # a replica that starts reads files
            self._fleet.loaded(weights)

    async def _look_before_update(self) -> None:
        """Check that the replica answers, so that later failures are about the weights. Raises `EngineBusy`."""
        replica = self.replica
        try:
            if replica.died:
                raise EngineError("its process has ended")
            await replica.look(min(LONGEST_LOOK_S, self._config.request_timeout_s))
        except EngineMismatch:
            pass  # it reports another version than it was given; the update fixes that, or `_watch` notices
        except EngineError as error:
            self._wrong(str(error), error)
            raise EngineBusy(f"{replica.name} does not answer: {error}") from error
        if replica.state is not ReplicaState.READY:  # changed in the meantime
            raise EngineBusy(f"{replica.name} is {replica.state}")

    def take_out(self, reason: str, kind: str = "failed") -> None:
        """Take the replica out of service; `keep` starts or connects to it again. `kind`: see `Fleet.faults`."""
        if self.replica.usable:
            self._down("died" if self.replica.died else kind, reason)
            self.replica.alarm.set()

    def give_less(self) -> None:
        """Lower the limit of requests at the same time, after the replica said that it is too busy."""
        self.replica.concurrency = shrink(self.replica.concurrency)

    async def is_to_blame(self, error: EngineError, *, late: bool = False) -> bool:
        """Return whether the replica is the cause of a failed request; it is out of service then.

        The test is a request that was answered before: a replica that fails at it as well is to blame. A replica that
        was `late` is to blame without a test.
        """
        replica, control = self.replica, self._fleet.control
        async with replica.examining:
            if not replica.usable:
                return True
            if late:
                self.take_out(str(error), "late")
                return True
            try:
                await replica.look(min(5.0, self._config.request_timeout_s))
            except EngineError as silence:
                self._wrong(f"{error}; then {silence}", silence)
                return True
            if control is None:
                replica.errors += 1
                if replica.errors >= MAX_ERRORS:
                    self.take_out(f"{replica.errors} errors in a row, at last: {error}")
                return False
            try:
                await self.ask(*control)
            except EngineBusy:
                return False
            except EngineError as second:
                self.take_out(f"{error}; then to another request {second}")
                return True
        return False

    # --- starting and watching ----------------------------------------------------------------------------------

    async def _admit(self) -> None:
        """Wait until the replica answers and serves the fleet's weights, and load them if it does not.

        Newer weights from another service are kept.

        Raises:
            EngineError: if it cannot be admitted.
        """
        replica, fleet = self.replica, self._fleet
        info = await replica.until_ready(self._config.start_timeout_s)
        async with fleet.locks.held(replica, self._config.start_timeout_s):
            if not replica.spec.owned:  # another service may have updated it while we waited
                info = await replica.look(self._config.request_timeout_s)
            weights = fleet.weights
            if info.version == weights.version and not replica.tainted:
                replica.verified = info.version
                await self._check(weights)
            elif not await self._adopt():
                await self._load(weights)
        if fleet.control is not None:
            await self.ask(*fleet.control)
        _log.info("engine %s serves version %d of %s", replica.name, replica.version, info.model)

    async def _watch(self) -> None:
        """Return once the replica is out of service; raise `EngineError` if its process has ended."""
        replica = self.replica
        silent = 0
        since = time.monotonic()
        probed = replica.requests
        while replica.usable:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.health_interval_s):
                    await replica.alarm.wait()
            if not replica.usable:
                return
            if replica.died:
                raise EngineError("its process has ended")
            if replica.state is not ReplicaState.READY:
                continue  # an update has its own time limit, during which the server may not answer
            try:
                await replica.look(min(LONGEST_LOOK_S, self._config.request_timeout_s))
            except EngineMismatch as error:
                if not await self._adopt():
                    self._wrong(str(error), error)
            except EngineError as error:
                silent += 1
                if silent >= FAILED_LOOKS and replica.state is ReplicaState.READY:
                    self._wrong(str(error), error)
            else:
                silent = 0
                if replica.requests > probed and time.monotonic() - since > self._config.max_backoff_s:
                    replica.failures = 0  # the probe alone does not count: the next request may kill it, each time
                self._fleet.changed.wake()  # its limit may have grown

    def _wrong(self, reason: str, error: EngineError) -> None:
        """Take the replica out of service because of its report, or because it gave none."""
        stale = isinstance(error, EngineMismatch)
        self.replica.tainted = self.replica.tainted or stale
        self.take_out(reason, "stale" if stale else "silent")

    def _down(self, kind: str, reason: str) -> None:
        self._fleet.faults[kind] += 1
        self.replica.failures += 1
        self.replica.why_down = reason
        self._set(ReplicaState.DOWN)
        _log.warning("engine %s is out of service (%s): %s", self.replica.name, kind, reason)

    def _set(self, state: ReplicaState) -> None:
        self.replica.state = state
        self._fleet.changed.wake()

    # --- weights ------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Wait until the replica has no requests left, at most `DRAIN_S`; the rest is cut off."""
        self._set(ReplicaState.DRAINING)
        deadline = time.monotonic() + DRAIN_S
        while self.replica.in_flight and self.replica.usable and time.monotonic() < deadline:
            await self._fleet.changed.wait(deadline)

    async def _gathered(self, weights: Weights) -> None:
        """Wait until a trainer has a version complete in its memory.

        Raises:
            UpdateNotBegun: if the version cannot be read within `start_timeout_s`.
        """
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                await asyncio.to_thread(read_facts, weights.memory)
        except (NotReadError, TimeoutError) as error:
            raise UpdateNotBegun(f"version {weights.version} does not come: {error}") from error

    async def _load(self, weights: Weights) -> None:
        """Load weights into the replica, and verify that it serves them.

        If another service was faster and the replica serves this version already, it is only verified.

        Raises:
            EngineError: if it does not serve them; it may hold a mixture of old and new weights.
        """
        replica = self.replica
        if replica.engine is None:
            raise EngineBusy(f"{replica.name} is {replica.state}")
        replica.updating_to = weights.version
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                if replica.tainted or (await replica.told()).version != weights.version:
                    with client_errors():
                        path = weights.memory or await replica.path_of(weights)
                        await replica.engine.update_weights(path, weights.version)
            info = await replica.look(self._config.request_timeout_s)
            if info.version != weights.version:
                raise EngineMismatch(f"it says version {info.version} after an update to {weights.version}")
            await self._check(weights)
            replica.verified, replica.tainted = weights.version, False
        except TimeoutError:
            raise EngineError(f"{replica.name} did not load {weights.path} in time") from None
        finally:
            replica.updating_to = None

    async def _check(self, weights: Weights) -> bool:
        """Verify the replica by the weights' fingerprint; False if they have none. Raises `EngineMismatch`."""
        engine, tolerance = self.replica.engine, self._config.fingerprint_tolerance
        if tolerance is None or not weights.path or engine is None:
            return False
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                published = await asyncio.to_thread(published_fingerprint, weights)
                if published is None:
                    return False
                with client_errors():
                    await compare_fingerprint(engine, published, tolerance, weights.memory or weights.path)
                return True
        except CheckpointError as error:
            raise EngineError(str(error)) from error
        except TimeoutError:
            raise EngineError(f"{self.replica.name} did not answer the fingerprint's prompts in time") from None

    async def _adopt(self) -> bool:
        """Return whether the replica serves newer weights from another service, verified as the newest published."""
        replica, fleet = self.replica, self._fleet
        newest, engine = fleet.published, replica.engine
        if newest is None or engine is None or replica.updating_to is not None or replica.spec.owned:
            return False
        ours = fleet.weights.version if replica.verified is None else replica.verified
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                serves = (await replica.told()).version
            if serves != newest.version or serves <= ours or not await self._check(newest):
                return False
        except (EngineError, TimeoutError) as error:
            _log.info("engine %s serves other weights than it was given: %s", replica.name, error)
            return False
        if replica.engine is not engine:
            return False  # it was reconnected in the meantime
        replica.version = replica.verified = serves
        replica.tainted = False
        fleet.loaded(newest)
        _log.info("engine %s serves version %d, which another service gave it", replica.name, serves)
        return True
