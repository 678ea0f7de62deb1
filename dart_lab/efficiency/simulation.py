"""The rollout service, data manager and trainer under a virtual clock, around the scheduler that the service uses.

What is simulated: desktops that boot, step and are evaluated; engines (`engine_model`); groups that become ready when
all members have ended, carry no signal when their rewards are equal, and expire outside the staleness window; a trainer
that takes the oldest ones; new weights that reach the engines; tasks that lose their desktops (`Setting.broken`), left
out by the service's own circuit breakers. What is not: other failures, and the time of the data base.

Invariants:
    - Which worker plays what is decided by `rollout.scheduler.Scheduler` alone, admission by `data.admission.capacity`.
    - All designs share setting, tasks and seeds; they differ in what waits for what, and in nothing else.
    - Every rollout that ended is in exactly one of: trained, without signal, expired, ready, its group is open.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from dart_lab.efficiency.engine_model import EngineModel
from dart_lab.efficiency.events import Clock, Process, Signal
from dart_lab.efficiency.workload import BROKEN, Episode, ModelTimes, Setting, draw
from dart_lab.modes.group_batches import Batches
from dart_lab.modes.waiting_schedulers import BatchWise, Mode, TaskWise
from dart_train.data.curation.rollout_admission import LATEST_GROUPS, Backlog, capacity, usable_share
from dart_train.data.curation.rules import oldest_allowed
from dart_train.rollout.play.gauges import BUSY_PHASES, PhaseClock
from dart_train.rollout.schedule.circuit_breaker import CircuitBreakers
from dart_train.rollout.schedule.scheduler import Assignment, Scheduler


@dataclass(frozen=True, slots=True)
class Design:
    """The design of a loop: which part waits for which.

    Attributes:
        mode: of the scheduler; batch-wise rollouts also wait for training and for all engines.
        rolling: engines take new weights a few at a time while the others keep serving; else all at once.
        over_provision: of batches, as of `BatchWise`.
        batches_ahead: as `data.curation.batches_ahead`, where rollouts do not wait for batches. None: no limit, what
            the trainer cannot keep up with expires (DART as published).
        warm: spare desktops that boot in the background, as a share of the playing ones.
        bounded: whether admission also keeps to the staleness window, as `data.curation.max_staleness` has it.
        last: whether a rollout's last step says how stale it is, as `data.curation.staleness_by` has it; else its
            oldest.
        prefix_reuse: a rollout's requests go to one engine, which keeps its prompt, and old screenshots leave the
            prompt in blocks; else an engine reads every prompt again.
    """

    mode: Mode = Mode.ROLLOUT
    rolling: bool = True
    over_provision: float = 1.0
    batches_ahead: float | None = None
    warm: float = 0.0
    prefix_reuse: bool = False
    bounded: bool = False
    last: bool = False

    @property
    def coupled(self) -> bool:
        """Return whether rollouts wait for the trainer."""
        return self.mode is Mode.BATCH


COUPLED = Design(mode=Mode.BATCH, rolling=False)
TASK_WISE = Design(mode=Mode.TASK, rolling=False)
DART = Design()

ROLLING_SHARE = 0.5
"""Engines that a rolling update takes at once, as a share of all: two of four in DART."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one simulated run without its first part.

    Attributes:
        env_utilisation: seconds in reset, step and evaluate over workers x wall.
        rollout_utilisation: share of the time that engines computed.
        throughput: trained actions per minute.
        played: actions played per minute, counted when their episodes end.
        steps: responses per minute.
        trained: rollouts trained on.
        no_signal: rollouts in groups of equal rewards, which teach nothing.
        expired: rollouts that became too old before the trainer took them.
        updates: versions.
        batch_s: mean seconds of the trainer's wait for a batch.
        cycle_s: mean seconds from one version to the next.
        staleness: greatest age, in versions, of a trained trajectory's oldest step.
        step_s: mean seconds of a generation, waiting included.
    """

    env_utilisation: float
    rollout_utilisation: float
    throughput: float
    played: float
    steps: float
    trained: int
    no_signal: int
    expired: int
    updates: int
    batch_s: float
    cycle_s: float
    staleness: int
    step_s: float


@dataclass(slots=True)
class _Group:
    """Members that have ended."""

    order: int
    actions: int = 0
    members: int = 0
    reward: float = 0.0
    oldest: int = 1 << 30

    @property
    def signal(self) -> bool:
        return 0.0 < self.reward < self.members


@dataclass(slots=True)
class _Counts:
    actions_played: int = 0
    actions_trained: int = 0
    trained: int = 0
    no_signal: int = 0
    expired: int = 0
    updates: int = 0
    waited_s: float = 0.0
    generated: int = 0
    generate_s: float = 0.0


class Simulation:
    """One run of a design in a setting."""

    def __init__(self, setting: Setting, design: Design) -> None:
        self.setting, self.design = setting, design
        self.clock = Clock()
        self.scheduler = self._scheduler()
        self.breakers = CircuitBreakers((entry.id for entry in setting.task_entries()), clock=lambda: self.clock.now)
        self.engines = [EngineModel(self.clock, setting.model) for _ in range(setting.engines)]
        self.phases = PhaseClock(setting.desktops, lambda: self.clock.now)
        self.counts = _Counts()
        self.staleness = 0
        self.version = 0
        self._work, self._data, self._published, self._serving = (Signal(self.clock) for _ in range(4))
        self.groups: dict[str, _Group] = {}
        self.ready: list[_Group] = []  # complete, with signal
        self._leased = 0
        self._decided: deque[bool] = deque(maxlen=LATEST_GROUPS)  # whether the latest groups had signal
        self.ended: list[_Group] = []  # complete, coupled only: with signal or without
        self._order = itertools.count()
        self._spares = self._spare_target = round(design.warm * setting.desktops)

    def _scheduler(self) -> Scheduler:
        setting, design = self.setting, self.design
        settings: dict[str, Any] = {
            "group_size": setting.group_size,
            "seed": setting.seed,
            "max_steps": setting.max_steps,
            "groups_at_once": 1,
        }
        if design.coupled:
            batches = Batches(setting.batch_groups, over_provision=design.over_provision, window=setting.max_staleness)
            return BatchWise(setting.task_entries(), batches=batches, **settings)
        kind = TaskWise if design.mode is Mode.TASK else Scheduler
        return kind(setting.task_entries(), **settings)

    def run(self, hours: float, *, skip_hours: float) -> Outcome:
        """Simulate, leave out the beginning, and sum up the rest."""
        for worker in range(self.setting.desktops):
            self.clock.start(self._worker(worker))
        if isinstance(self.scheduler, BatchWise):
            self.clock.start(self._train_batches(self.scheduler.batches))
        else:
            self.clock.start(self._train())
        if not self.design.coupled:
            self.clock.start(self._keep_updated())
        self.clock.run(3600 * skip_hours)
        busy, phases = self._engines_busy(), self.phases.seconds()
        self.counts = _Counts()
        self.clock.run(3600 * (skip_hours + hours))
        wall, counts = 3600 * hours, self.counts
        spent = self.phases.seconds()
        return Outcome(
            env_utilisation=sum(spent[p] - phases[p] for p in BUSY_PHASES) / (wall * self.setting.desktops),
            rollout_utilisation=(self._engines_busy() - busy) / (wall * self.setting.engines),
            throughput=60 * counts.actions_trained / wall,
            played=60 * counts.actions_played / wall,
            steps=60 * counts.generated / wall,
            trained=counts.trained,
            no_signal=counts.no_signal,
            expired=counts.expired,
            updates=counts.updates,
            batch_s=counts.waited_s / max(1, counts.updates),
            cycle_s=wall / max(1, counts.updates),
            staleness=self.staleness,
            step_s=counts.generate_s / max(1, counts.generated),
        )

    def _engines_busy(self) -> float:
        return sum(engine.busy_s for engine in self.engines)

    # --- desktops -----------------------------------------------------------------------------------------------

    def _worker(self, worker: int) -> Process:
        """One desktop: simulates `RolloutService._worker` and `episode.play`."""
        while True:
            held = self.breakers.held()
            assignment = self.scheduler.next(worker, admitted=self._admitted(), held=held)
            if assignment is None:
                yield self._work
                continue
            self.breakers.dealt(assignment.task_id)
            episode = draw(self.setting, assignment)
            broken = assignment.task_id.startswith(BROKEN)
            self.phases.enter(worker, "reset")
            yield from self._boot(episode)
            yield self.setting.broken_s if broken else episode.prepare_s
            if broken:
                self.phases.enter(worker, "idle")
                self._lose(assignment)
                continue
            oldest = yield from self._steps(worker, episode)
            yield episode.evaluate_s
            self.phases.enter(worker, "idle")
            self.counts.actions_played += len(episode.tokens)
            self._record(assignment, episode, oldest)

    def _lose(self, assignment: Assignment) -> None:
        """As `Workers._lost` does."""
        task = assignment.task_id
        self.scheduler.lose(assignment)
        self.breakers.lost(task, "set-up failed")
        if task in self.breakers.held():
            self.scheduler.drop(task)
        self._work.fire()

    def _steps(self, worker: int, episode: Episode) -> Generator[float | Signal, None, int]:
        """Policy and desktop in turn; returns the version that served the oldest step, or the last."""
        oldest, kept = 1 << 30, _KeptPrompt()
        for step, (tokens, seconds) in enumerate(zip(episode.tokens, episode.step_s, strict=True)):
            self.phases.enter(worker, "generate")
            began = self.clock.now
            while (engine := self._route(kept.engine)) is None:
                yield self._serving
            version = engine.version
            reused = self.design.prefix_reuse and kept.by(engine)
            images, prompt = prompt_to_read(self.setting.model, episode.tokens, step, reused)
            yield engine.submit(images, prompt, tokens)
            oldest = version if self.design.last else min(oldest, version)
            kept = _KeptPrompt(engine, version)
            self.counts.generated += 1
            self.counts.generate_s += self.clock.now - began
            self.phases.enter(worker, "step")
            yield seconds
        return oldest

    def _boot(self, episode: Episode) -> Process:
        """Take a spare desktop if one is ready, and boot its replacement; else boot."""
        if self._spares:
            self._spares -= 1
            self.clock.start(self._boot_spare(episode.boot_s))
        else:
            yield episode.boot_s

    def _boot_spare(self, seconds: float) -> Process:
        yield seconds
        self._spares += 1

    def _route(self, last: EngineModel | None) -> EngineModel | None:
        """The engine that has the rollout's prompt, else the one with the least to do; None while none serves."""
        serving = [engine for engine in self.engines if engine.serving]
        if not serving:
            return None
        least = min(serving, key=lambda engine: engine.in_flight)
        if self.design.prefix_reuse and last is not None and last.serving and last.in_flight <= least.in_flight + 2:
            return last
        return least

    def _admitted(self) -> bool:
        if self.design.coupled:
            return True
        setting = self.setting
        running, unfinished = self.scheduler.backlog(self.breakers.held())
        usable = usable_share(sum(self._decided), len(self._decided))
        room = capacity(
            Backlog(
                ready=len(self.ready),
                leased=self._leased,
                running=running,
                usable=usable,
                playing=unfinished / setting.group_size,
            ),
            batch_groups=setting.batch_groups,
            max_staleness=setting.max_staleness if self.design.bounded else None,
            batches_ahead=self.design.batches_ahead,
        )
        return room is None or room > 0

    # --- data ---------------------------------------------------------------------------------------------------

    def _record(self, assignment: Assignment, episode: Episode, oldest: int) -> None:
        self.scheduler.complete(assignment)
        group = self.groups.setdefault(assignment.group_key, _Group(next(self._order)))
        group.actions += len(episode.tokens)
        group.members += 1
        group.reward += episode.reward
        group.oldest = min(group.oldest, oldest)
        if group.members == assignment.group_size:
            del self.groups[assignment.group_key]
            self._decided.append(group.signal)
            if self.design.coupled:
                self.ended.append(group)
            elif group.signal:
                self.ready.append(group)
            else:
                self.counts.no_signal += group.members
            self._data.fire()
        self._work.fire()

    def _expire(self) -> None:
        limit = oldest_allowed(self.version, self.setting.max_staleness)
        fresh = [group for group in self.ready if limit is None or group.oldest >= limit]
        self.counts.expired += sum(group.members for group in self.ready) - sum(group.members for group in fresh)
        self.ready = fresh

    # --- training -----------------------------------------------------------------------------------------------

    def _train(self) -> Process:
        """The trainer of DART: takes a batch whenever there is one, publishes, continues."""
        while True:
            waiting_since = self.clock.now
            while True:
                self._expire()
                if len(self.ready) >= self.setting.batch_groups:
                    break
                yield self._data
            self.counts.waited_s += self.clock.now - waiting_since
            self.ready.sort(key=lambda group: group.order)
            taken, self.ready = self.ready[: self.setting.batch_groups], self.ready[self.setting.batch_groups :]
            self._leased = len(taken)
            self._work.fire()
            yield from self._optimise(taken)
            self._leased = 0
            self._published.fire()
            self._work.fire()

    def _train_batches(self, batches: Batches) -> Process:
        """The coupled trainer: waits for the batch, trains, updates all engines, lets rollouts continue."""
        while True:
            waiting_since = self.clock.now
            while not batches.complete:
                yield self._data
            self.counts.waited_s += self.clock.now - waiting_since
            self.ended.sort(key=lambda group: group.order)
            taken, self.ended = self.ended[: batches.target], self.ended[batches.target :]
            self.counts.no_signal += sum(group.members for group in taken if not group.signal)
            yield from self._optimise([group for group in taken if group.signal])
            yield from self._update(self.engines)
            batches.close()
            self._work.fire()

    def _optimise(self, groups: Sequence[_Group]) -> Process:
        actions = sum(group.actions for group in groups)
        self.staleness = max([self.staleness, *(self.version - group.oldest for group in groups)])
        yield actions * self.setting.train_s_per_action
        self.version += 1
        self.counts.updates += 1
        self.counts.actions_trained += actions
        self.counts.trained += sum(group.members for group in groups)

    # --- weights ------------------------------------------------------------------------------------------------

    def _keep_updated(self) -> Process:
        """New weights are loaded into the engines in the background; newer weights replace waiting ones."""
        at_once = max(1, int(ROLLING_SHARE * len(self.engines))) if self.design.rolling else len(self.engines)
        while True:
            stale = [engine for engine in self.engines if engine.version != self.version]
            if stale:
                yield from self._update(sorted(stale, key=lambda engine: engine.version)[:at_once])
            else:
                yield self._published

    def _update(self, engines: Sequence[EngineModel]) -> Process:
        """Let engines finish what they have, give them the newest weights together, send requests again."""
        for engine in engines:
            engine.serving = False
        for engine in engines:
            while engine.in_flight:
                yield engine.idle
        version = self.version
        yield self.setting.model.update_s
        for engine in engines:
            engine.version, engine.serving = version, True
        self._serving.fire()


@dataclass(frozen=True, slots=True)
class _KeptPrompt:
    """Which engine has the last prompt of a rollout in its cache, and of which version."""

    engine: EngineModel | None = None
    version: int = -1

    def by(self, engine: EngineModel) -> bool:
        """Return whether that engine has it in its cache, which new weights empty."""
        return engine is self.engine and engine.version == self.version


def prompt_to_read(model: ModelTimes, responses: Sequence[int], step: int, reused: bool) -> tuple[int, int]:
    """Screenshots and tokens that an engine has to read for a step. Pure.

    Args:
        model: lengths and the window of screenshots.
        responses: tokens of the episode's responses.
        step: from 0.
        reused: whether the engine has the prompt before this step's. Screenshots leave the prompt in blocks of the
            window's size, so that it is a prefix of the next one until then.
    """
    if reused and step % model.images:
        return 1, responses[step - 1] + model.image_tokens
    images = min(step + 1, model.images)
    return images, model.fixed_tokens + sum(responses[:step]) + images * model.image_tokens
