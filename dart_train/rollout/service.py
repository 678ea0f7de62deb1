"""RolloutService: desktop slots, engine replicas, scheduler and recorder together; the process `dart-train rollout`.

Invariants:
    - One event loop, one coroutine per desktop slot. The loop never waits for disk, database or a model: recording,
      admission and the checkpoint table are read and written in threads, models run in their own processes.
    - Every rollout that begins ends as exactly one of: recorded, lost (dealt again), abandoned (the service stops).
    - Cluster, database and engines may be away for `patience_s`; what a person must mend (an unknown task, a wrong
      setting) ends the service at once with that error.
    - Once `run` returns or raises, no process, socket or thread of the service is left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dart_agent.engines.base import Engine
from dart_agent.policies.policy import Policy
from dart_gym.cluster.client import ClientSession, ClientSettings, ClusterClient
from dart_gym.cluster.protocol import ErrorCode
from dart_gym.errors import (
    ClusterError,
    ConfigurationError,
    DartGymError,
    MissingDependencyError,
    TaskError,
)
from dart_gym.outcomes import TerminalState
from dart_train.data.manager import DataManager
from dart_train.errors import DataError
from dart_train.metrics import MetricsLog
from dart_train.rollout.config import Mode, RolloutConfig
from dart_train.rollout.engines import EnginePool, EpisodeEngine
from dart_train.rollout.episode import PlayedEpisode, play
from dart_train.rollout.gate import BatchGate, make_batches
from dart_train.rollout.gauges import BUSY_PHASES, PhaseClock, SuccessWindow, Totals, engine_figures
from dart_train.rollout.recorder import Recorder
from dart_train.rollout.replica import Weights
from dart_train.rollout.scheduler import Assignment, Scheduler
from dart_train.rollout.sockets import socket_directory
from dart_train.rollout.sync import WeightSync

_log = logging.getLogger(__name__)
FOR_A_PERSON = (ConfigurationError, MissingDependencyError, TaskError)
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
RECONNECT_S = 10.0
RECORD_REST_S = 10.0


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """Final counts.

    Attributes:
        rollouts: recorded ones of the run, earlier lives included.
        lost: rollouts that broke off and were dealt again.
        given_up: group members that were lost too often.
        actions: carried out in this life.
        weight_updates: of single replicas.
        reissued: engine requests that were sent again.
        seconds: of this life.
        terminals: episodes by how they ended.
        cpu_s: processor seconds of this process.
    """

    rollouts: int
    lost: int
    given_up: int
    actions: int
    weight_updates: int
    reissued: int
    seconds: float
    terminals: dict[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0


class RolloutService:
    """Plays rollouts until the budget is spent or `stop` is called.

    Args:
        config: what to play and how.
        data: the run's data manager.
        cluster_url: of the environment cluster.
        weights: what the engines start with.
        make_policy: makes the policy of one slot around an engine; it must sample with the configured sampling.
        metrics: gets a line per `metrics_interval_s`; None for none.
        log_dir: of the engines' logs.
        token: of the cluster.
    """

    def __init__(
        self,
        config: RolloutConfig,
        data: DataManager,
        *,
        cluster_url: str,
        weights: Weights,
        make_policy: Callable[[Engine], Policy],
        metrics: MetricsLog | None = None,
        log_dir: str | Path | None = None,
        token: str | None = None,
    ) -> None:
        self.config, self.data = config, data
        completed = sum(stats.rollouts for stats in data.task_stats().values())
        self.scheduler = Scheduler(
            config.tasks,
            group_size=config.group_size,
            seed=config.seed,
            budget=config.budget_rollouts,
            completed=completed,
            life=f"{time.time_ns() // 1_000_000:x}",
            max_steps=config.max_steps,
            stay_groups=config.stay_groups,
            max_attempts=config.max_attempts,
            mode=config.mode,
            groups_at_once=config.groups_at_once,
            batches=make_batches(config, data),
        )
        settings = ClientSettings(reconnect_s=min(RECONNECT_S, config.patience_s), name="rollout")
        self._limits = {entry.id: entry.max_steps or config.max_steps for entry in config.tasks}
        self._client = ClusterClient(cluster_url, token=token, settings=settings)
        self._weights, self._make_policy = weights, make_policy
        self._metrics, self._log_dir = metrics, log_dir
        self._clock = PhaseClock(config.slots)
        self._success = SuccessWindow(entry.id for entry in config.tasks)
        self._totals = Totals()
        self._stop = asyncio.Event()
        self._work = asyncio.Event()  # something changed that may give an idle slot work
        self._admitted = True
        self._started = time.monotonic()
        self._cpu_started = time.process_time()
        self._pool: EnginePool
        self._sync: WeightSync
        self._recorder: Recorder

    def stop(self) -> None:
        """End soon: running episodes get `stop_grace_s`. Call from the event loop (a signal handler of it)."""
        self._stop.set()
        self._work.set()

    async def run(self) -> RolloutSummary:
        """Play until done.

        Raises:
            DartGymError: a task or setting is wrong, or the cluster stayed away for too long.
            DataError: the database stayed away for too long, or its disk is full.
            EngineError: no engine came up.
        """
        loop = asyncio.get_running_loop()
        self._recorder = Recorder(
            self.data,
            patience_s=self.config.patience_s,
            on_failure=lambda: loop.call_soon_threadsafe(self.stop),
        )
        try:
            with socket_directory() as directory:
                engine = self.config.engine
                self._pool = EnginePool(
                    engine,
                    self._weights,
                    directory=directory,
                    log_dir=self._log_dir,
                    sync=self.config.sync,
                    locks=self.data,
                )
                self._sync = WeightSync(self._newest_weights, self._pool, interval_s=self.config.sync_interval_s)
                async with self._pool:
                    await self._run_all()
        finally:
            await asyncio.to_thread(self._recorder.close, RECORD_REST_S)
        self._write_metrics()
        if self._recorder.failure is not None:
            raise self._recorder.failure
        return self.summary()

    def summary(self) -> RolloutSummary:
        """The counts so far."""
        return RolloutSummary(
            rollouts=self.scheduler.completed,
            lost=self.scheduler.lost,
            given_up=self.scheduler.given_up,
            actions=int(self._totals.sums["actions"]),
            weight_updates=self._sync.updates,
            reissued=self._pool.reissued,
            seconds=time.monotonic() - self._started,
            terminals=dict(self._totals.terminals),
            cpu_s=time.process_time() - self._cpu_started,
        )

    # --- tasks of the event loop --------------------------------------------------------------------------------

    async def _run_all(self) -> None:
        """Run slots until they are done or told to stop, and the helpers beside them as long."""
        work = [self._sync.run(), self._keep_admission(), self._keep_metrics()]
        if self.scheduler.batches is not None:
            gate = BatchGate(
                self.scheduler.batches,
                self.data,
                pending=lambda: self._recorder.pending,
                served=lambda: [replica.version for replica in self._pool.replicas if replica.usable],
                on_closed=self._work.set,
            )
            work.append(gate.run())
        helpers = [asyncio.create_task(helper) for helper in work]
        slots = [asyncio.create_task(self._slot(index), name=f"slot-{index}") for index in range(self.config.slots)]
        stopping = asyncio.create_task(self._stop.wait())
        try:
            waiting: set[asyncio.Task[Any]] = {*slots, *helpers, stopping}
            while any(not slot.done() for slot in slots) and not self._stop.is_set():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            unfinished = [slot for slot in slots if not slot.done()]
            if unfinished:
                await asyncio.wait(unfinished, timeout=self.config.stop_grace_s)
        finally:
            for task in (*slots, *helpers, stopping):
                task.cancel()
            await asyncio.gather(*slots, *helpers, stopping, return_exceptions=True)

    async def _keep_admission(self) -> None:
        """Ask the data manager now and then whether another group may be opened, and how large and how long."""
        warned = False
        while True:
            try:
                admitted = await asyncio.to_thread(self.data.admit, self.scheduler.unfinished)
                for task_id, plan in (await asyncio.to_thread(self.data.plans, self._limits)).items():
                    self.scheduler.plan(task_id, group_size=plan.group_size, max_steps=plan.max_steps, share=plan.share)
                warned = False
            except DataError as error:
                if not warned:
                    _log.warning("cannot ask for admission, no new groups until then: %s", error)
                admitted, warned = False, True
            self._admitted = admitted
            if admitted:
                self._work.set()
            await asyncio.sleep(self.config.admission_interval_s)

    async def _keep_metrics(self) -> None:
        while True:
            await asyncio.sleep(self.config.metrics_interval_s)
            self._write_metrics()

    def _newest_weights(self) -> Weights | None:
        row = self.data.newest_checkpoint()
        return Weights(row.path, row.version) if row is not None else None

    # --- one slot -----------------------------------------------------------------------------------------------

    async def _slot(self, slot: int) -> None:
        """Play rollouts on one desktop; connect again when the session is lost."""
        pause, lost_since = FIRST_PAUSE_S, None
        while True:
            assignment = await self._next_assignment(slot)
            if assignment is None:
                return
            before = self._totals.sums["episodes"]
            self._clock.enter(slot, "connect")
            try:
                async with self._client.session() as session:
                    await self._episodes(slot, session, assignment)
                    return
            except FOR_A_PERSON:
                raise
            except (DartGymError, OSError) as error:
                if isinstance(error, ClusterError) and error.code == ErrorCode.AUTH:
                    raise
                now = time.monotonic()
                if lost_since is None or self._totals.sums["episodes"] > before:
                    pause, lost_since = FIRST_PAUSE_S, now
                if now - lost_since > self.config.patience_s:
                    raise ClusterError(
                        f"slot {slot} found no desktop for {now - lost_since:.0f} s; is `dart-gym serve` running? "
                        f"Last error: {error}"
                    ) from error
                _log.warning("slot %d lost its desktop, tries again in %.1f s: %s", slot, pause, error)
            self._clock.enter(slot, "idle")
            await self._pause(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def _episodes(self, slot: int, session: ClientSession, assignment: Assignment | None) -> None:
        """Play one rollout after the other on a session, until there is none."""
        policy = self._make_policy(EpisodeEngine(self._pool))
        losses = 0

        def enter(phase: str) -> None:
            self._clock.enter(slot, phase)

        while assignment is not None:
            try:
                played = await play(session, policy, assignment, enter, pacing=self.config.pacing)
            except BaseException:
                self.scheduler.lose(assignment)
                self._work.set()
                raise
            self._clock.enter(slot, "idle")
            losses = 0 if self._take(played) else losses + 1
            if losses:
                await self._pause(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(losses - 1, 10)))
            assignment = await self._next_assignment(slot)

    def _take(self, played: PlayedEpisode) -> bool:
        """Account for an ended episode and have it recorded; return whether it counts."""
        self._totals.add(played)
        if played.steps:
            self._recorder.put(played)
        if played.trainable and played.reward is not None:
            self.scheduler.complete(played.assignment)
            self._success.add(played.assignment.task_id, played.reward)
        else:
            again = self.scheduler.lose(played.assignment)
            level = logging.INFO if again else logging.WARNING
            _log.log(
                level,
                "%s seed %d ended as %s (%s); %s",
                played.assignment.task_id,
                played.assignment.seed,
                played.terminal if played.terminal is not TerminalState.DONE else "not scored",
                played.detail or "no detail",
                "it will be played again" if again else "given up, its group stays incomplete",
            )
        if self.scheduler.lost or self.scheduler.exhausted or self.scheduler.mode is not Mode.ROLLOUT:
            self._work.set()  # others wait for what this one was the last of
        return played.trainable

    async def _next_assignment(self, slot: int) -> Assignment | None:
        """Wait for something to play; None when the service ends."""
        while not self._stop.is_set():
            self._work.clear()
            if self._recorder.pending < self.config.max_unrecorded:
                assignment = self.scheduler.next(slot, admitted=self._admitted)
                if assignment is not None:
                    return assignment
                if self.scheduler.exhausted:
                    self._work.set()
                    return None
            await self._wait_for_work()
        return None

    async def _wait_for_work(self) -> None:
        try:
            async with asyncio.timeout(self.config.admission_interval_s):
                await self._work.wait()
        except TimeoutError:
            return

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the service is told to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return

    # --- metrics ------------------------------------------------------------------------------------------------

    def _write_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.write(**self.figures())

    def figures(self) -> dict[str, Any]:
        """The metrics line."""
        phases = self._clock.seconds()
        seconds, grown = self._totals.rates(
            busy=sum(phases[phase] for phase in BUSY_PHASES),
            waiting=phases["generate"],
            updates=self._sync.updates,
            recorder_s=self._recorder.busy_s,
            cpu_s=time.process_time() - self._cpu_started,
        )
        slot_seconds = seconds * self.config.slots
        episodes = grown.get("episodes", 0.0)
        return {
            "rollouts": self.scheduler.completed,
            "budget": self.config.budget_rollouts,
            "running": self.scheduler.running,
            "lost": self.scheduler.lost,
            "given_up": self.scheduler.given_up,
            "open_groups": self.scheduler.open_groups,
            "unrecorded": self._recorder.pending,
            "admitted": self._admitted,
            "actions": int(self._totals.sums["actions"]),
            "success": self._success.means(),
            "dealt": self.scheduler.dealt(),
            "terminals": dict(self._totals.terminals),
            "desktops": self._clock.counts(),
            "env_utilisation": min(1.0, grown["busy"] / slot_seconds),
            "engine_wait_share": min(1.0, grown["waiting"] / slot_seconds),
            "actions_per_min": 60.0 * grown.get("actions", 0.0) / seconds,
            "rollouts_per_s": episodes / seconds,
            "seconds_per_rollout": {
                name[:-2]: value / episodes
                for name, value in grown.items()
                if name.endswith("_s") and episodes and name not in ("recorder_s", "cpu_s")
            },
            "recorder_share": grown["recorder_s"] / seconds,
            "cpu_share": min(1.0, max(0.0, grown["cpu_s"]) / seconds),
            "engines": engine_figures(self._pool.replicas),
            "target_version": self._sync.target.version if self._sync.target else None,
            "weight_updates": self._sync.updates,
            "weight_update_s": self._sync.update_s,
            "reissued": self._pool.reissued,
        }
