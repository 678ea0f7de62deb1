"""RolloutService: workers, engine replicas, scheduler and recorder together; the process `rollout` of a run.

Invariants:
    - There is one event loop with one coroutine per worker. It never waits for disk, database or a model: recording,
      admission and the checkpoint table are read and written in threads, models run in their own processes.
    - Every rollout that begins ends as exactly one of: recorded; lost (dealt again, or given up); cut off by the end of
      the service. The decisions of lost and cut-off rollouts are recorded as such, without a score.
    - Cluster, database, disk space and engines may be away for `unavailable_timeout_s` (`Dependencies`). Ended episodes
      wait, and are recorded when these are back. What a person must fix, such as the name of a task, ends the service
      at once with that error.
    - Once `run` returns or raises, no process, socket or thread of the service is left.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dart_agent.engines.base.engine import Engine, EngineError
from dart_agent.judging.judge import Judge
from dart_agent.policies.policy import PlayableSession, Policy
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.core.os_remedies import FULL
from dart_gym.utils.owned_directories import owned_directory
from dart_train.core.metrics_log import MetricsLog
from dart_train.data.groups import checkpoint_rows
from dart_train.data.insight import statistics
from dart_train.data.manager.recording import Recording
from dart_train.data.store.database_locks import DatabaseLocks
from dart_train.rollout.ended.judging import Judging
from dart_train.rollout.fleet.engine_pool import EnginePool, EpisodeEngine
from dart_train.rollout.fleet.replica import EngineNodes, Weights
from dart_train.rollout.fleet.weight_files import in_memory
from dart_train.rollout.fleet.weight_sync import WeightSync
from dart_train.rollout.play.dependencies import Dependencies
from dart_train.rollout.play.forked_successes import forks_of_successes
from dart_train.rollout.play.gauges import Gauges, engine_figures
from dart_train.rollout.play.group_forks import GroupForks
from dart_train.rollout.play.recorder import Recorder
from dart_train.rollout.play.rollout_workers import Workers
from dart_train.rollout.play.shown_pages import ShownPages
from dart_train.rollout.schedule.scheduler import Scheduler, Surroundings
from dart_train.rollout.service.planner import Planner
from dart_train.rollout.service.serving_record import ServingRecord
from dart_train.rollout.settings.reward_config import RewardConfig
from dart_train.rollout.settings.rollout_config import SCHEDULERS, EnginePlaces, RolloutConfig
from dart_train.rollout.settings.teacher_config import TeacherConfig
from dart_train.rollout.teachers.teacher import TeacherFactory
from dart_train.rollout.teachers.teaching import Teaching

_log = logging.getLogger(__name__)
RECONNECT_S = 10.0
RECORD_GRACE_S = 8.0
"""Seconds that a stopped service may take to record ended episodes."""
LOOK_S = 0.5
"""Seconds between two checks whether any engine is left."""


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """Final counts.

    Attributes:
        lost: number of rollouts that broke off and were dealt again.
        given_up: number of group members that were lost too often.
    """

    rollouts: int
    lost: int
    given_up: int
    actions: int
    terminals: dict[str, int] = field(default_factory=dict)


class RolloutService:
    """Plays rollouts until the budget is spent or `stop` is called.

    Args:
        url: address of the environment cluster.
        make_policy: creates the policy of one worker for an engine; it must sample with the configured sampling.
        metrics: gets a line every `metrics_interval_s`; None for no metrics.
        places: GPUs of the engines that are started here.
        on_wait: called with what the start waits for, and with "" once it is over.
        nodes: starts engines on nodes of a cluster; None starts them here.
        teacher: settings of the teaching.
        make_teacher: creates the teacher; None for no teacher.
        judges: judges by name, each with its settings.
        shown_pages: pages of each task that are shown, at most.
        make_oracle: creates the policy that shows them on a session; None for no such pages.
    """

    def __init__(
        self,
        config: RolloutConfig,
        data: Recording,
        *,
        url: str,
        weights: Weights,
        make_policy: Callable[[Engine], Policy],
        metrics: MetricsLog | None = None,
        log_dir: str | Path | None = None,
        token: str | None = None,
        places: EnginePlaces = EnginePlaces(),
        on_wait: Callable[[str], None] = lambda text: None,
        nodes: EngineNodes | None = None,
        teacher: TeacherConfig = TeacherConfig(),
        make_teacher: TeacherFactory | None = None,
        judges: Mapping[str, tuple[RewardConfig, Judge]] = MappingProxyType({}),
        shown_pages: int = 0,
        make_oracle: Callable[[PlayableSession], Policy] | None = None,
    ) -> None:
        self.config = config
        self.data = data
        self._places = places
        self._nodes = nodes
        self._teacher, self._make_teacher = teacher, make_teacher
        self._judges = judges
        self._actions_before = data.read(statistics.actions_played)
        self._on_wait = on_wait
        self.scheduler = _scheduler(config, data)
        self.forks = GroupForks(data.config.forks, self.scheduler, partial(forks_of_successes, data))
        known = data.read(statistics.shown_counts) if shown_pages else {}
        self.shown = ShownPages(self.scheduler, shown_pages, make_oracle, known)
        self.dependencies = Dependencies(config.unavailable_timeout_s)
        self.gauges = Gauges(config.workers, (entry.id for entry in config.tasks), self._newest_version)
        patience_s = min(RECONNECT_S, config.unavailable_timeout_s)
        settings = ClientSettings(reconnect_s=patience_s, answer_s=min(10.0, patience_s), name="rollout")
        self.client = ClusterClient(url, token=token, settings=settings)
        self._weights, self._make_policy = weights, make_policy
        self._metrics, self._log_dir = metrics, log_dir
        self._stop = asyncio.Event()
        self._cpu_started = time.process_time()
        self.pool: EnginePool
        self._sync: WeightSync
        self._serving: ServingRecord
        self._recorder: Recorder
        self._teaching: Teaching
        self._judging: Judging
        self._workers: Workers

    def stop(self) -> None:
        """Stop soon: running episodes get `stop_grace_s`. Call this on the event loop, as its signal handlers do."""
        self._stop.set()
        if self.playing:
            self._workers.stop()

    @property
    def playing(self) -> bool:
        """Return whether the parts of the service exist, which is so from the start of `run` on."""
        return hasattr(self, "_workers")

    @property
    def unrecorded(self) -> int:
        """Episodes that have ended and are not recorded yet."""
        if not self.playing:
            return 0
        return self._recorder.pending + self._judging.waiting + self._teaching.waiting

    async def run(self) -> RolloutSummary:
        """Play until the budget is spent or the service is stopped.

        Raises:
            DartGymError: if a task name or a setting is wrong, or the cluster was away for too long.
            DataError: if the database was away, or the disk full, for too long.
            EngineError: if no engine started, or all were away for too long.
            TeacherError: if the teacher does not fit the policy, or did not start.
            TasksFailedError: if no task could be played for too long.
        """
        self._recorder = self._new_recorder()
        try:
            with owned_directory("engines") as directory:
                self._assemble(directory)
                async with self.pool:
                    await self._teach_and_run()
                await self._serving.end()
        finally:
            await asyncio.to_thread(self._recorder.close, RECORD_GRACE_S)
        self._write_metrics()
        if self._recorder.failure is not None:
            raise self._recorder.failure
        return self.summary()

    def summary(self) -> RolloutSummary:
        """Return the counts so far."""
        totals = self.gauges.totals
        return RolloutSummary(
            rollouts=self.scheduler.completed,
            lost=self.scheduler.lost,
            given_up=self.scheduler.given_up,
            actions=int(totals.sums["actions"]),
            terminals=dict(totals.terminals),
        )

    # --- parts --------------------------------------------------------------------------------------------------

    def _new_recorder(self) -> Recorder:
        loop = asyncio.get_running_loop()
        return Recorder(
            self.data,
            dependencies=self.dependencies,
            most=self.config.max_unrecorded,
            most_bytes=self.config.max_unrecorded_mb * 1_000_000,
            on_failure=lambda: loop.call_soon_threadsafe(self.stop),
        )

    def _assemble(self, sockets: Path) -> None:
        config = self.config
        self.pool = EnginePool(
            config.engine,
            self._weights,
            directory=sockets,
            log_dir=self._log_dir,
            sync=config.sync,
            locks=DatabaseLocks(self.data.store),
            places=self._places,
            on_wait=self._on_wait,
            nodes=self._nodes,
        )
        self._sync = WeightSync(
            self.data.newest_here,
            self.pool,
            interval_s=config.sync_interval_s,
            availability=self.dependencies.database,
            offered=self._in_memory,
        )
        self._serving = ServingRecord(self.data.serving, self.pool)
        teacher = self._make_teacher(EpisodeEngine(self.pool), sockets) if self._make_teacher is not None else None
        self._teaching = Teaching(
            teacher, self._recorder.put, when=self._teacher.when, timeout_s=self._teacher.timeout_s
        )
        self._judging = Judging(self._judges, self._teaching.hand_in)
        budget = config.budget_actions
        self._workers = Workers(
            config,
            self.scheduler,
            client=self.client,
            new_policy=lambda: self._make_policy(EpisodeEngine(self.pool)),
            recorder=self._recorder,
            gauges=self.gauges,
            dependencies=self.dependencies,
            forks=self.forks,
            shown=self.shown,
            teaching=self._teaching,
            judging=self._judging,
            actions_left=math.inf if budget is None else budget - self._actions_before,
        )

    def _in_memory(self) -> Weights | None:
        """Return the weights in the trainer's memory, or None. Engines on other nodes cannot read them."""
        if self.config.sync.transfer == "files" or self._nodes is not None:
            return None
        return in_memory(self.data.fact(checkpoint_rows.IN_MEMORY))

    def _helpers(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines that run beside the workers."""
        planner = Planner(self.config, self.data, self.scheduler, self._workers, self.dependencies.database)
        around = Surroundings(
            self.data,
            pending=lambda: self.unrecorded,
            served=lambda: [replica.version for replica in self.pool.replicas if replica.usable],
            wake=self._workers.wake,
            availability=self.dependencies.database,
        )
        return [
            self._sync.run(),
            planner.run(),
            self._keep_metrics(),
            self._look_at_engines(),
            self._serving.run(),
            self.forks.run(),
            *self.scheduler.helpers(around),
        ]

    # --- tasks of the event loop --------------------------------------------------------------------------------

    async def _teach_and_run(self) -> None:
        """Run the service, with the teacher while episodes are to be taught."""
        try:
            await self._teaching.start(resumed=self.scheduler.completed > 0)
            await self._judging.start()
            await self._run_all()
        finally:
            limit = self.config.stop_grace_s if self._stop.is_set() else self._teacher.timeout_s
            await self._judging.settle(limit)
            await self._teaching.settle(limit)
            await self._judging.close()
            await self._teaching.close()

    async def _run_all(self) -> None:
        """Run the workers until they are done or told to stop, with the helpers beside them."""
        helpers = [asyncio.create_task(helper) for helper in self._helpers()]
        workers = [
            asyncio.create_task(self._workers.run(worker), name=f"worker-{worker}")
            for worker in range(self.config.workers)
        ]
        stopping = asyncio.create_task(self._stop.wait())
        try:
            waiting: set[asyncio.Task[Any]] = {*workers, *helpers, stopping}
            while any(not worker.done() for worker in workers) and not self._stop.is_set():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            unfinished = [worker for worker in workers if not worker.done()]
            if unfinished:
                _log.info("told to stop: %d episodes get %g s to end", self.scheduler.running, self.config.stop_grace_s)
                await asyncio.wait(unfinished, timeout=self.config.stop_grace_s)
        finally:
            for task in (*workers, *helpers, stopping):
                task.cancel()
            await asyncio.gather(*workers, *helpers, stopping, return_exceptions=True)

    async def _look_at_engines(self) -> None:
        """Log when no engine is left, and when one is back.

        Raises:
            EngineError: if there was no engine for too long.
        """
        availability = self.dependencies.engines
        while True:
            if any(replica.usable for replica in self.pool.replicas):
                availability.restored()
            else:
                availability.failed("; ".join(f"{one.name}: {one.why_down or one.state}" for one in self.pool.replicas))
                if availability.timed_out:
                    raise EngineError(
                        f"no engine replica for {self.config.unavailable_timeout_s:g} s ({availability.reason}); "
                        "their logs may say why"
                    )
            await asyncio.sleep(LOOK_S)

    async def _keep_metrics(self) -> None:
        while True:
            await asyncio.sleep(self.config.metrics_interval_s)
            self._write_metrics()

    def _newest_version(self) -> int:
        return self._sync.target.version if self._sync.target else self.pool.fleet.weights.version

    # --- metrics ------------------------------------------------------------------------------------------------

    def _write_metrics(self) -> None:
        if self._metrics is None or not self.playing:
            return
        try:
            self._metrics.write(**self.figures())
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.dependencies.disk.failed(error, "metrics")
        else:
            self.dependencies.disk.succeeded("metrics")

    def figures(self) -> dict[str, Any]:
        """Return the metrics line. Call this only while `playing`."""
        scheduler = self.scheduler
        pool = self.pool
        sync = self._sync
        return {
            "rollouts": scheduler.completed,
            "budget": self.config.budget_rollouts,
            "played_actions": self._actions_before + int(self.gauges.totals.sums["actions"]),
            "budget_actions": self.config.budget_actions,
            "running": scheduler.running,
            "lost": scheduler.lost,
            "given_up": scheduler.given_up,
            "open_groups": scheduler.open_groups,
            "dealt": scheduler.dealt(),
            "admitted": self._workers.admitted,
            "unrecorded": self.unrecorded,
            "refused": self._recorder.refused,
            **self.gauges.figures(recorder_s=self._recorder.busy_s, cpu_s=time.process_time() - self._cpu_started),
            "engines": engine_figures(pool.replicas),
            "engine_queue": pool.queued,
            "engine_faults": dict(pool.fleet.faults),
            "reissued": pool.reissued,
            "target_version": sync.target.version if sync.target else None,
            "weight_updates": sync.updates,
            "weight_updates_failed": sync.failed,
            "weight_updates_from_memory": sync.from_memory,
            "weight_update_s": sync.update_s,
            "weights_skipped": {weights.version: reason for weights, reason in sync.skipped.items()},
            **({"forks": self.forks.made, "forks_given_up": self.forks.given_up} if self.forks.enabled else {}),
            **self._teaching.figures(),
            **self._judging.figures(),
            "left_out": self._workers.breakers.shown(),
            "unavailable": {name: asdict(state) for name, state in self.dependencies.present().items()},
            "recoveries": {name: one.count - one.away for name, one in self.dependencies.named().items() if one.count},
        }


def _scheduler(config: RolloutConfig, data: Recording) -> Scheduler:
    """Return the scheduler of a new life of a run."""
    records = data.read(statistics.task_stats, data.config.success_window)
    return SCHEDULERS.get(config.mode).for_run(
        data.config,
        config.tasks,
        group_size=config.group_size,
        seed=config.seed,
        budget=config.budget_rollouts,
        completed=sum(stats.rollouts for stats in records.values()) + data.read(statistics.scored_forks),
        life=f"{time.time_ns() // 1_000_000:x}",
        max_steps=config.max_steps,
        max_attempts=config.max_attempts,
        groups_at_once=config.groups_at_once,
    )
