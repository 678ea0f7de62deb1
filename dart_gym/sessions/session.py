"""A task on a desktop: reset, step, finish, with one deadline per operation, typed outcomes and seconds by phase.

Invariants:
    - What goes wrong with the desktop or a task's set-up is a value: terminal ENV_ERROR with an evaluation of
      status ENVIRONMENT_ERROR; the desktop is thrown away, so the next reset gets a fresh one. The same holds for
      a deadline that passes, for then nobody knows what the desktop did.
    - What a person must act on is raised: an unknown task, a missing program, a step without an episode.
    - Where a busy machine delays a step or an evaluation, its deadline moves until the desktop has had its time.
    - A desktop that a program inside ended, or held up, once the episode ran, is terminal DESKTOP_KILLED with a score
      of 0; so is one that it ends while it is judged. `cause_of_end` decides who it was.
    - Any other score is an evaluator's; no error becomes a 0.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dart_gym.core.actions import Action, Done, Fail
from dart_gym.core.errors import DesktopError, DesktopKilledError, EpisodeStateError, EvaluationFailure, TaskError
from dart_gym.core.operation_deadline import OperationDeadline
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState
from dart_gym.desktops.base.desktop import Accountable, ActionError, Desktop
from dart_gym.sessions.cause_of_end import caused_inside, was_killed
from dart_gym.sessions.reset_request import Pacing, ResetRequest, describe, pacing_named
from dart_gym.sessions.slot import Slot
from dart_gym.tasks.catalog.scenario import Measurable, Patchable, Prepared, Scenario
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.evaluation.watched_desktop import watch
from dart_gym.utils.shown_text import printable

DEFAULT_DEADLINE_S = 120.0
ENOUGH_SHARE = 0.5
"""Share of an operation's time in which a desktop that has a processor must be done, on a busy machine."""
ACCESSIBILITY_S = 10.0
_ENVIRONMENT_TROUBLE = (DesktopError, TaskError, OSError, TimeoutError)


class PhaseTimer:
    """Seconds of one operation by phase; what is timed twice adds up. Use `with timer.phase("settle"): ...`."""

    def __init__(self, **seconds: float) -> None:
        self._seconds, self._started = seconds, time.perf_counter()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time inside to a phase."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

    def finish(self) -> dict[str, float]:
        """Seconds by phase, and "total" of the whole operation."""
        return {**self._seconds, "total": time.perf_counter() - self._started}


@dataclass(slots=True)
class _Episode:
    """State of the running episode."""

    task: Task
    request: ResetRequest
    desktop: Desktop
    scenario: Scenario
    prepared: Prepared
    info: dict[str, object]
    ends_at: float = math.inf
    actions: list[Action] = field(default_factory=list)
    judged: Any = None  # the desktop as its evaluation sees it
    measurable: Measurable | None = field(init=False)
    accountable: Accountable | None = field(init=False)

    def __post_init__(self) -> None:
        # Once an episode: looking for a protocol's methods takes longer than all else of a small step.
        self.measurable = self.scenario if isinstance(self.scenario, Measurable) else None
        self.accountable = self.desktop if isinstance(self.desktop, Accountable) else None

    @property
    def pacing(self) -> Pacing:
        return pacing_named(self.request.pacing)


class Session:
    """Episodes on the desktop of `slot` (None: its own), one after the other. Operations must not run concurrently."""

    def __init__(self, slot: Slot | None = None) -> None:
        self.slot = slot or Slot()
        self._owns_slot = slot is None
        self.episode: _Episode | None = None

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def reset(
        self, task: ResetRequest | str | dict[str, Any] | Task, *, deadline_s: float = DEFAULT_DEADLINE_S, **fields: Any
    ) -> StepResult:
        """Start an episode and return its first observation.

        Args:
            task: a request, or its task.
            deadline_s: seconds that this operation may take.
            fields: those of `ResetRequest` besides the task ("seed", "max_steps", ...), where none is given.

        Raises:
            UnknownTaskError, TaskError, ConfigurationError: the arguments are wrong.
            MissingDependencyError: the machine cannot run such a desktop.
        """
        request = ResetRequest.of(task, fields)
        timer = PhaseTimer(queue=0.0)
        self.episode = None
        resolved = request.resolve()
        info: dict[str, object] = {"task_id": resolved.id, "task_hash": resolved.hash, "seed": request.seed}
        if not resolved.deterministic:
            info["deterministic"] = False
        info |= describe(pacing_named(request.pacing), None)
        try:
            async with OperationDeadline(deadline_s):
                episode = await self._start(resolved, request, info, timer)
                await self._measure(episode, timer.phase("prepare"))
                observation = await self._look(episode, "", timer)
        except _ENVIRONMENT_TROUBLE as error:
            self.slot.discard()
            size, detail = (resolved.desktop.height, resolved.desktop.width), _explain("reset", error, deadline_s)
            return StepResult.lost(size, detail, evaluator="session", timings=timer.finish(), info=dict(info))
        except BaseException:
            self.slot.discard()
            raise
        self.slot.begin_episode()
        if request.time_limit_s is not None:
            episode.ends_at = time.monotonic() + request.time_limit_s
        self.episode = episode
        return StepResult(observation, timings=timer.finish(), info=dict(info))

    async def _start(self, task: Task, request: ResetRequest, info: dict[str, object], timer: PhaseTimer) -> _Episode:
        pacing = pacing_named(request.pacing)
        with timer.phase("boot"):
            desktop = await self.slot.desktop(task.desktop)
        if self.slot.api_address is not None:
            info["osworld_api"] = self.slot.api_address.describe()
        with timer.phase("prepare"):
            scenario = self.slot.scenario(task.suite)
            prepared = await scenario.prepare(desktop, task, request.seed)
            settled = prepared.settled
            if not prepared.frame_ready or pacing.after_reset_s is not None:
                settled = await pacing.wait(desktop, prepared.settle, pacing.after_reset_s)
            info |= describe(pacing, settled)
        return _Episode(task, request, desktop, scenario, prepared, info)

    async def step(self, action: Action, *, deadline_s: float = DEFAULT_DEADLINE_S) -> StepResult:
        """Perform an action and return what the settled screen shows.

        Raises:
            EpisodeStateError: if no episode is running.
        """
        return await self._guarded("step", lambda run, timer: self._step(run, action, timer), deadline_s)

    async def _step(self, episode: _Episode, action: Action, timer: PhaseTimer) -> _Outcome:
        desktop = episode.desktop
        error = ""
        terminal = None
        episode.actions.append(action)
        if isinstance(action, (Done, Fail)):
            terminal = TerminalState.DONE if isinstance(action, Done) else TerminalState.FAIL
        else:
            with timer.phase("perform"):
                try:
                    await desktop.perform(action)
                except ActionError as problem:
                    error = printable(str(problem)) or "the action could not be carried out"
            with timer.phase("settle"):
                pacing = episode.pacing
                settled = await pacing.wait(desktop, episode.prepared.settle, pacing.after_action_s)
                episode.info |= describe(pacing, settled)
            with timer.phase("watch"):
                if await episode.scenario.after_action(desktop, action):
                    terminal = TerminalState.DONE
        if terminal is None and len(episode.actions) >= (episode.request.max_steps or episode.task.max_steps):
            terminal = TerminalState.STEP_LIMIT
        if terminal is None and time.monotonic() >= episode.ends_at:
            terminal = TerminalState.TIME_LIMIT
        return await self._observe(episode, error, terminal, timer)

    async def finish(self, terminal: TerminalState, *, deadline_s: float = DEFAULT_DEADLINE_S) -> StepResult:
        """End the episode from the policy's side (PARSE_ERROR, MODEL_ERROR, STEP_LIMIT, ...) and score it.

        An end that is nobody's decision (MODEL_ERROR, ENV_ERROR, INTERRUPTED) is not scored.

        Raises:
            EpisodeStateError: no episode is running.
        """
        return await self._guarded("finish", lambda run, timer: self._observe(run, "", terminal, timer), deadline_s)

    async def _observe(
        self, episode: _Episode, error: str, terminal: TerminalState | None, timer: PhaseTimer
    ) -> _Outcome:
        await self._measure(episode, timer.phase("watch"))
        observation = await self._look(episode, error, timer)
        if terminal is None:
            return observation, None, None
        with timer.phase("evaluate"):
            return observation, terminal, await self._evaluate(episode, terminal)

    async def _measure(self, episode: _Episode, phase: contextlib.AbstractContextManager[None]) -> None:
        """Note how far the task is and was, where its scenario knows."""
        if episode.measurable is not None:
            with phase:
                progress = await episode.measurable.progress(episode.desktop)
            if progress is not None:
                episode.info["progress_before"] = episode.info.get("progress", progress)
                episode.info["progress"] = progress

    async def _look(self, episode: _Episode, error: str, timer: PhaseTimer) -> Observation:
        tree = None
        with timer.phase("capture"):
            screenshot = await episode.desktop.screenshot()
        if episode.request.accessibility:
            with timer.phase("accessibility"):
                found = await episode.desktop.accessibility_tree(timeout=ACCESSIBILITY_S)
            tree, episode.info["accessibility_complete"] = found.xml, found.complete
        return Observation(screenshot, episode.prepared.instruction, error, tree)

    async def _evaluate(self, episode: _Episode, terminal: TerminalState) -> Evaluation:
        if not terminal.trainable:
            return Evaluation(EvaluationStatus.ENVIRONMENT_ERROR, None, "session", f"not evaluated: {terminal}")
        try:
            episode.judged = watch(episode.desktop)
            found = await episode.scenario.evaluate(episode.judged, terminal, episode.actions)
        except EvaluationFailure as failure:
            found = Evaluation(EvaluationStatus.EVALUATION_ERROR, None, episode.task.suite, str(failure))
        if found.status is not EvaluationStatus.OK and await was_killed(episode.desktop):
            raise DesktopKilledError(f"while it was evaluated: {found.detail}")
        return dataclasses.replace(found, detail=printable(found.detail))

    async def _guarded(self, name: str, operation: _Operation, deadline_s: float) -> StepResult:
        """Run a part of the episode under its deadline; trouble with the environment becomes its result."""
        episode, timer = self._running(), PhaseTimer()
        desktop, accountable = episode.desktop, episode.accountable
        judge = accountable.judge(ENOUGH_SHARE * deadline_s) if accountable is not None else None
        deadline = OperationDeadline(deadline_s, judge, movable=True)
        try:
            async with deadline:
                observation, terminal, evaluation = await operation(episode, timer)
        except _ENVIRONMENT_TROUBLE as error:
            killed = await caused_inside(desktop, episode.judged, error, late=deadline.own)
            self._abandon()
            return StepResult.lost(
                (episode.task.desktop.height, episode.task.desktop.width),
                _explain(name, error, deadline_s + deadline.extended),
                evaluator="session",
                instruction=episode.prepared.instruction,
                step_index=len(episode.actions),
                timings=timer.finish(),
                info=dict(episode.info),
                killed=killed,
            )
        except BaseException:  # cancelled, or a bug: nobody knows the desktop's state any more
            self._abandon()
            raise
        if terminal is not None:
            self.episode = None
        steps, info = len(episode.actions), dict(episode.info)
        return StepResult(observation, terminal, evaluation, steps, timer.finish(), info)

    async def oracle(self, *, deadline_s: float = DEFAULT_DEADLINE_S) -> Action:
        """Return a perfect user's next action.

        Raises:
            EpisodeStateError: if no episode is running.
            TaskError: if the task has no oracle.
        """
        episode = self._running()
        async with OperationDeadline(deadline_s):
            return await episode.scenario.oracle(episode.desktop)

    async def golden(self, *, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        """Bring about the solved state without actions. Raises `EpisodeStateError`; `TaskError`: no such way."""
        episode = self._running()
        if not isinstance(episode.scenario, Patchable):
            raise TaskError(f"{episode.task.id}: its suite has no golden patches")
        async with OperationDeadline(deadline_s):
            await episode.scenario.golden(episode.desktop)

    @property
    def running(self) -> bool:
        """Return whether an episode is under way."""
        return self.episode is not None

    def _running(self) -> _Episode:
        if self.episode is None:
            raise EpisodeStateError("no episode is running (none was started, or it has ended): call reset first")
        return self.episode

    def _abandon(self) -> None:
        self.episode = None
        self.slot.discard()

    async def close(self) -> None:
        """End the episode without a score; a slot of its own is closed."""
        self.episode = None
        if self._owns_slot:
            await self.slot.close()


_Outcome = tuple[Observation, TerminalState | None, Evaluation | None]
_Operation = Callable[[_Episode, PhaseTimer], Awaitable[_Outcome]]


def _explain(operation: str, error: BaseException, deadline_s: float) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"{operation} was not done within its deadline of {deadline_s:.4g} s"
    return printable(f"{operation}: {type(error).__name__}: {error}")
