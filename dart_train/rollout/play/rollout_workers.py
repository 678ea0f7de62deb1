"""Rollout workers: each plays one rollout after the other on a session of its own.

Invariants:
    - Every rollout that begins is accounted for exactly once: scored; or lost and dealt again; or cut off by the end of
      the service. The decisions made until then are recorded in any case.
    - A worker that loses its desktop opens a new session, and retries for as long as the cluster may be away.
    - A task that loses its desktops is skipped for a while (`CircuitBreakers`); the other tasks go on.
"""

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable
from functools import partial

from dart_agent.policies.policy import Policy
from dart_gym.cluster.client.cluster_client import ClientSession, ClusterClient
from dart_gym.cluster.wire.frames import ErrorCode
from dart_gym.core.errors import (
    ClusterError,
    ConfigurationError,
    DartGymError,
    MissingDependencyError,
    UnknownTaskError,
)
from dart_gym.core.outcomes import TerminalState
from dart_gym.utils.backoff import backoff
from dart_train.core.availability import FIRST_PAUSE_S, LONGEST_PAUSE_S
from dart_train.core.data_states import ORACLE_SOURCE
from dart_train.core.train_errors import TasksFailedError
from dart_train.rollout.ended.judging import Judging
from dart_train.rollout.play.dependencies import Dependencies
from dart_train.rollout.play.gauges import Gauges
from dart_train.rollout.play.group_forks import GroupForks
from dart_train.rollout.play.recorder import Recorder
from dart_train.rollout.play.rollouts import FORK, GroupOver, Limits, Rollout
from dart_train.rollout.play.shown_pages import ShownPages
from dart_train.rollout.schedule.circuit_breaker import CircuitBreakers
from dart_train.rollout.schedule.scheduler import Assignment, Scheduler
from dart_train.rollout.settings.rollout_config import RolloutConfig
from dart_train.rollout.teachers.teaching import Teaching

_log = logging.getLogger(__name__)
FOR_A_PERSON = (ConfigurationError, MissingDependencyError, UnknownTaskError)
STOPPED = "the service was told to stop"
GROUP_OVER = "its group expired, or was closed without it"
TASKS_FAULTS = ("environment", "evaluation")


class Workers:
    """All workers of the service, within one event loop.

    Attributes:
        room: number of groups that may be opened before the data manager decides again.
    """

    def __init__(
        self,
        config: RolloutConfig,
        scheduler: Scheduler,
        *,
        client: ClusterClient,
        new_policy: Callable[[], Policy],
        recorder: Recorder,
        gauges: Gauges,
        dependencies: Dependencies,
        forks: GroupForks,
        shown: ShownPages,
        teaching: Teaching,
        judging: Judging,
        actions_left: float = math.inf,
    ) -> None:
        self.room: float = math.inf
        self.breakers = CircuitBreakers(
            (entry.id for entry in config.tasks),
            losses=config.breaker_losses,
            first_s=config.breaker_reset_s,
            longest_s=20 * config.breaker_reset_s,
        )
        self._config = config
        self._scheduler = scheduler
        self._client = client
        self._new_policy = new_policy
        self.recorder = recorder
        self._gauges = gauges
        self._forks = forks
        self._shown = shown
        self._teaching = teaching
        self._judging = judging
        self._dependencies = dependencies
        self._limits = Limits(config.time_limit_s, config.longest_turn_s)
        self._stop = asyncio.Event()
        self._work = asyncio.Event()  # set when an idle worker may find work
        self._connected: set[int] = set()
        self._tries: Counter[int] = Counter()  # by worker, while other workers have desktops
        self._actions_left = actions_left
        self._look_at_budget()

    @property
    def admitted(self) -> bool:
        """Return whether another group may be opened."""
        return self.room > 0

    def stop(self) -> None:
        """Begin no new rollouts."""
        self._stop.set()
        self._work.set()

    def _look_at_budget(self) -> None:
        """Begin no new rollouts once the actions are spent; running rollouts are played to their end."""
        if self._gauges.totals.sums["actions"] >= self._actions_left and not self._stop.is_set():
            _log.info("the budget of actions is spent")
            self.stop()

    def wake(self) -> None:
        """Wake idle workers to look for work."""
        self._work.set()

    async def run(self, worker: int) -> None:
        """Run one worker until nothing is left to play. Raises `DartGymError`, `TasksFailedError`."""
        assignment: Assignment | None = None
        while True:
            assignment = assignment or await self._next(worker)
            if assignment is None:
                return
            self._gauges.clock.enter(worker, "connect")
            try:
                async with self._client.session() as session:
                    self._connected.add(worker)
                    self._tries.pop(worker, None)
                    self._dependencies.cluster.restored()
                    if self._stop.is_set():
                        return
                    begun, assignment = assignment, None
                    await self._episodes(worker, session, begun)
                    continue
            except FOR_A_PERSON:
                raise
            except (DartGymError, OSError) as error:
                if isinstance(error, ClusterError) and error.code == ErrorCode.AUTH:
                    raise
                self._connected.discard(worker)
                pause = self._missed(worker, error)
            finally:
                self._connected.discard(worker)
            self._gauges.clock.enter(worker, "idle")
            await self._pause(pause)
            if self._stop.is_set():
                return

    def _missed(self, worker: int, error: Exception) -> float:
        """Note that a worker has no desktop; return the pause before its next try."""
        if self._connected:
            self._tries[worker] += 1
            if self._tries[worker] == 2:  # by now the other workers would have noticed a lost cluster
                _log.warning("worker %d lost its desktop, %d others go on: %s", worker, len(self._connected), error)
            return backoff(self._tries[worker], FIRST_PAUSE_S, LONGEST_PAUSE_S)
        availability = self._dependencies.cluster
        pause = availability.failed(error, f"worker {worker}")
        if availability.timed_out:
            raise ClusterError(
                f"no worker found a desktop for more than {self._config.unavailable_timeout_s:g} s; "
                f"is `dart-gym serve` running? Last error: {error}",
                ErrorCode.UNREACHABLE,
            ) from error
        return pause

    # --- playing ------------------------------------------------------------------------------------------------

    async def _episodes(self, worker: int, session: ClientSession, first: Assignment) -> None:
        """Play rollouts on a session until there are no more, or the session is lost."""
        policy = self._new_policy()
        assignment: Assignment | None = first
        losses = 0
        while assignment is not None:
            rollout = Rollout(assignment, over=self._scheduler.is_over, teaching=self._teaching)
            rollout.keeps_last = self._judging.enabled
            await self._play(worker, session, policy, rollout)
            losses = 0 if self._take(rollout) else losses + 1
            self._gauges.clock.enter(worker, "idle")
            if losses and rollout.trajectory.detail != GROUP_OVER and rollout.trajectory.lost_by != FORK:
                await self._pause(backoff(losses, FIRST_PAUSE_S, LONGEST_PAUSE_S))
            if rollout.trajectory.lost_by == "cluster":
                return
            await self._show(worker, session, self._shown.ended(rollout.assignment, rollout.trajectory))
            assignment = await self._next(worker)

    async def _show(self, worker: int, session: ClientSession, page: Assignment | None) -> None:
        """Let the oracle play a page that a whole group failed on, and record it if it succeeds."""
        if page is None or self._shown.oracle is None or self._stop.is_set():
            return
        shown, enter = Rollout(page, source=ORACLE_SOURCE), partial(self._gauges.clock.enter, worker)
        await shown.play(session, self._shown.oracle(session), enter, pacing=self._config.pacing, limits=self._limits)
        self._gauges.totals.add(shown.trajectory)
        self._look_at_budget()
        if shown.trajectory.success:
            self.recorder.put(shown.trajectory, page.group_size)
        else:
            ended = shown.trajectory.terminal
            _log.warning("%s seed %d is not shown: its oracle ended as %s", page.task_id, page.seed, ended)
        self._gauges.clock.enter(worker, "idle")

    async def _play(self, worker: int, session: ClientSession, policy: Policy, rollout: Rollout) -> None:
        """Play one rollout. One that is cut off is accounted for before the error is raised again."""
        enter = partial(self._gauges.clock.enter, worker)
        try:
            await rollout.play(session, policy, enter, pacing=self._config.pacing, limits=self._limits)
        except GroupOver:
            rollout.cut_off(TerminalState.INTERRUPTED, GROUP_OVER, "stop")
        except asyncio.CancelledError:
            rollout.cut_off(TerminalState.INTERRUPTED, STOPPED, "stop")
            self._take(rollout)
            raise
        except Exception as error:
            rollout.cut_off(TerminalState.ENV_ERROR, str(error), "cluster")
            self._take(rollout)
            raise

    def _take(self, rollout: Rollout) -> bool:
        """Account for an ended rollout and record it; return whether it counts."""
        trajectory = rollout.trajectory
        self._gauges.add(trajectory)
        self._look_at_budget()
        if trajectory.steps or trajectory.lost_by == FORK:
            self._judging.hand_in(rollout.trajectory, rollout.assignment.group_size)
        if trajectory.trainable:
            self._scheduler.complete(rollout.assignment)
            self._won(trajectory.task_id)
        else:
            self._lost(rollout)
        self._forks.ended(rollout.assignment, trajectory)
        if self._scheduler.lost or self._scheduler.exhausted or self._scheduler.waits:
            self._work.set()  # other workers wait for the end of this rollout
        return trajectory.trainable

    def _won(self, task: str) -> None:
        if self.breakers.won(task):
            self._scheduler.rejoin(task)
            _log.warning("%s can be played again, and is dealt as before", task)
        self._dependencies.tasks.restored()

    def _lost(self, rollout: Rollout) -> None:
        played = rollout.trajectory
        task = rollout.assignment.task_id
        ended = rollout.trajectory.terminal
        if played.lost_by == FORK:
            self._forks.lost(rollout.assignment)
            _log.info("a fork of %s seed %d is given up: %s", task, played.seed, played.detail)
        again = self._scheduler.lose(rollout.assignment)
        what = str(ended) if ended is not TerminalState.DONE else "not scored"
        then = "it will be played again" if again else "given up, its group stays incomplete"
        if played.lost_by not in ("stop", FORK):
            _log.log(
                logging.INFO if again else logging.WARNING,
                "%s seed %d ended as %s (%s); %s",
                task,
                played.seed,
                what,
                played.detail or "no detail",
                then,
            )
        if played.lost_by not in TASKS_FAULTS:
            self.breakers.undecided(task)
        elif self.breakers.lost(task, played.detail or what):
            _log.error("%s is left out for a while, the other tasks go on: %s", task, self.breakers.shown()[task])
        if task in self.breakers.held():  # rollouts that were begun before are not dealt again either
            self._scheduler.drop(task)

    # --- waiting ------------------------------------------------------------------------------------------------

    async def _next(self, worker: int) -> Assignment | None:
        """Wait for a rollout to play; return None when the service ends."""
        while not self._stop.is_set():
            self._work.clear()
            if not (self.recorder.full or self._judging.full or self._teaching.full):
                assignment = self._scheduler.next(worker, admitted=self.admitted, held=self.breakers.held())
                if assignment is not None:
                    if assignment.n == 0 and assignment.attempt == 0:  # the first rollout of a new group
                        self.room -= 1
                    self.breakers.dealt(assignment.task_id)
                    return assignment
                if self._scheduler.exhausted:
                    self._work.set()
                    return None
                self._look_at_tasks()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.admission_interval_s):
                    await self._work.wait()
        return None

    def _look_at_tasks(self) -> None:
        """Check whether nothing is dealt because every task is skipped."""
        if not self.breakers.all_held:
            return
        availability = self._dependencies.tasks
        reasons = "; ".join(f"{task}: {reason}" for task, reason in list(self.breakers.shown().items())[:3])
        availability.failed(reasons)
        if availability.timed_out:
            raise TasksFailedError(
                f"no task could be played for {self._config.unavailable_timeout_s:g} s ({reasons}): "
                "look at the cluster's log, and try one with `dart-agent run`"
            )

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the service is told to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()
