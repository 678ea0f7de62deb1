"""A task on a desktop: reset, step, finish, with one deadline per operation, typed outcomes and seconds by phase.

Invariants:
    - What goes wrong with the desktop or a task's set-up is a value: terminal ENV_ERROR with an evaluation of
      status ENVIRONMENT_ERROR; the desktop is thrown away, so the next reset gets a fresh one. The same holds for
      a deadline that passes, for then nobody knows what the desktop did.
    - What a person must act on is raised: an unknown task, a missing program, a step without an episode.
    - A score exists only if an evaluator gave it; no error becomes a 0.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from dart_gym.core.actions import Action, Done, Fail
from dart_gym.core.errors import DesktopError, EpisodeStateError, EvaluationFailure, TaskError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState
from dart_gym.desktops.base.desktop import ActionError, Desktop, DesktopSpec, PhaseTimer
from dart_gym.sessions.pacing import Pacing, describe, pacing_named
from dart_gym.sessions.reset_request import ResetRequest
from dart_gym.sessions.slot import Slot
from dart_gym.tasks.catalog.scenario import Prepared, Scenario
from dart_gym.tasks.catalog.task import Task

DEFAULT_DEADLINE_S = 120.0
ACCESSIBILITY_S = 10.0
_ENVIRONMENT_TROUBLE = (DesktopError, TaskError, OSError, TimeoutError)


@dataclass(slots=True)
class _Episode:
    """State of the running episode."""

    task: Task
    seed: int
    max_steps: int
    ends_at: float
    desktop: Desktop
    scenario: Scenario
    prepared: Prepared
    info: dict[str, object]
    pacing: Pacing
    accessibility: bool = False
    actions: list[Action] = field(default_factory=list)


class Session:
    """Episodes on the desktop of one slot, one after the other. Operations must not run concurrently.

    Args:
        slot: where the desktop lives; the caller closes it. None: a slot of its own, closed by `close`.
    """

    def __init__(self, slot: Slot | None = None) -> None:
        self._slot = slot or Slot()
        self._owns_slot = slot is None
        self._episode: _Episode | None = None

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def reset(
        self,
        task: ResetRequest | str | dict[str, Any] | Task,
        *,
        deadline_s: float = DEFAULT_DEADLINE_S,
        **fields: Any,
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
        started = time.perf_counter()
        self._episode = None
        resolved, pacing = request.resolve(), pacing_named(request.pacing)
        info: dict[str, object] = {"task_id": resolved.id, "task_hash": resolved.hash, "seed": request.seed}
        info |= describe(pacing, None)
        timer = PhaseTimer({"queue": 0.0})
        try:
            async with asyncio.timeout(deadline_s):
                episode = await self._start(resolved, request.seed, pacing, info, timer)
                episode.accessibility = request.accessibility
                observation = await self._look(episode, "", timer)
        except _ENVIRONMENT_TROUBLE as error:
            self._slot.discard()
            return _lost(resolved.desktop, "", 0, _explain("reset", error, deadline_s), info, timer, started)
        except BaseException:
            self._slot.discard()
            raise
        episode.max_steps = request.max_steps or resolved.max_steps
        episode.ends_at = math.inf if request.time_limit_s is None else time.monotonic() + request.time_limit_s
        self._episode = episode
        return _result(observation, None, None, 0, info, timer, started)

    async def _start(
        self, task: Task, seed: int, pacing: Pacing, info: dict[str, object], timer: PhaseTimer
    ) -> _Episode:
        with timer.phase("boot"):
            desktop = await self._slot.desktop(task.desktop)
        if self._slot.api_address is not None:
            info["osworld_api"] = self._slot.api_address.describe()
        with timer.phase("prepare"):
            scenario = self._slot.scenario(task.suite)
            prepared = await scenario.prepare(desktop, task, seed)
            settled = prepared.settled
            if not prepared.frame_ready or pacing.after_reset_s is not None:
                settled = await pacing.wait(desktop, prepared.settle, pacing.after_reset_s)
            info |= describe(pacing, settled)
        return _Episode(task, seed, task.max_steps, math.inf, desktop, scenario, prepared, info, pacing)

    async def step(self, action: Action, *, deadline_s: float = DEFAULT_DEADLINE_S) -> StepResult:
        """Carry out an action, wait until the screen has settled, and return what it shows.

        Raises:
            EpisodeStateError: no episode is running.
        """
        return await self._guarded("step", lambda run, timer: self._step(run, action, timer), deadline_s)

    async def _step(self, episode: _Episode, action: Action, timer: PhaseTimer) -> _Outcome:
        desktop, error, terminal = episode.desktop, "", None
        episode.actions.append(action)
        if isinstance(action, (Done, Fail)):
            terminal = TerminalState.DONE if isinstance(action, Done) else TerminalState.FAIL
        else:
            with timer.phase("perform"):
                try:
                    await desktop.perform(action)
                except ActionError as problem:
                    error = str(problem) or "the action could not be carried out"
            with timer.phase("settle"):
                pacing = episode.pacing
                settled = await pacing.wait(desktop, episode.prepared.settle, pacing.after_action_s)
                episode.info |= describe(pacing, settled)
            with timer.phase("watch"):
                if await episode.scenario.after_action(desktop, action):
                    terminal = TerminalState.DONE
        if terminal is None and len(episode.actions) >= episode.max_steps:
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
        observation = await self._look(episode, error, timer)
        if terminal is None:
            return observation, None, None
        with timer.phase("evaluate"):
            return observation, terminal, await self._evaluate(episode, terminal)

    async def _look(self, episode: _Episode, error: str, timer: PhaseTimer) -> Observation:
        tree = None
        with timer.phase("capture"):
            screenshot = await episode.desktop.screenshot()
        if episode.accessibility:
            with timer.phase("accessibility"):
                found = await episode.desktop.accessibility_tree(timeout=ACCESSIBILITY_S)
            tree, episode.info["accessibility_complete"] = found.xml, found.complete
        return Observation(screenshot, episode.prepared.instruction, error, tree)

    async def _evaluate(self, episode: _Episode, terminal: TerminalState) -> Evaluation:
        if not terminal.trainable:
            return Evaluation(EvaluationStatus.ENVIRONMENT_ERROR, None, "session", f"not evaluated: {terminal}")
        try:
            return await episode.scenario.evaluate(episode.desktop, terminal, episode.actions)
        except EvaluationFailure as failure:
            return Evaluation(EvaluationStatus.EVALUATION_ERROR, None, episode.task.suite, str(failure))

    async def _guarded(self, name: str, operation: _Operation, deadline_s: float) -> StepResult:
        """Run a part of the episode under its deadline; trouble with the environment becomes its result."""
        started = time.perf_counter()
        episode, timer = self._running(), PhaseTimer()
        try:
            async with asyncio.timeout(deadline_s):
                observation, terminal, evaluation = await operation(episode, timer)
        except _ENVIRONMENT_TROUBLE as error:
            self._abandon()
            detail = _explain(name, error, deadline_s)
            instruction, steps = episode.prepared.instruction, len(episode.actions)
            return _lost(episode.task.desktop, instruction, steps, detail, episode.info, timer, started)
        except BaseException:  # cancelled, or a bug: nobody knows the desktop's state any more
            self._abandon()
            raise
        if terminal is not None:
            self._episode = None
        return _result(observation, terminal, evaluation, len(episode.actions), episode.info, timer, started)

    async def oracle(self, *, deadline_s: float = DEFAULT_DEADLINE_S) -> Action:
        """The next action of a perfect user.

        Raises:
            EpisodeStateError: no episode is running.
            TaskError: the suite knows no oracle for this task.
        """
        episode = self._running()
        async with asyncio.timeout(deadline_s):
            return await episode.scenario.oracle(episode.desktop)

    @property
    def running(self) -> bool:
        """Whether an episode is under way."""
        return self._episode is not None

    def _running(self) -> _Episode:
        if self._episode is None:
            raise EpisodeStateError("no episode is running (none was started, or it has ended): call reset first")
        return self._episode

    def _abandon(self) -> None:
        self._episode = None
        self._slot.discard()

    async def close(self) -> None:
        """End the episode without a score; a slot of its own is closed."""
        self._episode = None
        if self._owns_slot:
            await self._slot.close()


_Outcome = tuple[Observation, TerminalState | None, Evaluation | None]
_Operation = Callable[[_Episode, PhaseTimer], Awaitable[_Outcome]]


def _explain(operation: str, error: BaseException, deadline_s: float) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"{operation} was not done within its deadline of {deadline_s:g} s"
    return f"{operation}: {type(error).__name__}: {error}"


def _result(
    observation: Observation,
    terminal: TerminalState | None,
    evaluation: Evaluation | None,
    step_index: int,
    info: dict[str, object],
    timer: PhaseTimer,
    started: float,
) -> StepResult:
    timings = timer.seconds
    timings["total"] = time.perf_counter() - started
    return StepResult(observation, terminal, evaluation, step_index, timings, dict(info))


def _lost(
    spec: DesktopSpec,
    instruction: str,
    step_index: int,
    detail: str,
    info: dict[str, object],
    timer: PhaseTimer,
    started: float,
) -> StepResult:
    timings = timer.seconds | {"total": time.perf_counter() - started}
    return StepResult.lost(
        (spec.height, spec.width),
        detail,
        evaluator="session",
        instruction=instruction,
        step_index=step_index,
        timings=timings,
        info=dict(info),
    )
