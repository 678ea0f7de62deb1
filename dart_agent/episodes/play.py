"""One episode: reset, then policy and desktop in turn until it ends. The one loop that evaluation and training share.

Invariants:
    - Nothing that a policy's model or a desktop does wrong raises here: it is the episode's terminal state. Only the
      loss of the cluster's connection and an unknown task raise. A policy that raises ends its episode as MODEL_ERROR.
    - An episode that the environment, its evaluator or an engine lost has no score that counts (`lost_by`).
    - A policy that does not decide within its time ends the episode as MODEL_ERROR; it must let itself be cancelled.
    - `timings` holds seconds by phase. "reset", "step", "evaluate" and "queue" are the server's, "wire" is the time
      between client and server, "generate" the policy's, "engine" the part of "generate" in which a model computed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from dart_agent.episodes.trajectory import Pixels, Step, Trajectory
from dart_agent.policies.policy import Decision, Episode, PlayableSession, Policy
from dart_gym.core.actions import action_to_dict
from dart_gym.core.errors import DartGymError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState
from dart_gym.utils.waits import waiting_for

_log = logging.getLogger(__name__)
CLUSTER_EVALUATOR = "cluster"
"""Stands for the evaluator in the result of an episode whose connection was lost."""

PhaseHook = Callable[[str], None]
"""Told which phase begins: "reset", "generate" or "step"."""


class EpisodeRecorder(Protocol):
    """Takes an episode while it is played."""

    def begin(self, trajectory: Trajectory) -> Trajectory:
        """Take what is played, once its first screen is there; return it with what the recorder adds (an id)."""

    def step(self, step: Step) -> Step | None:
        """Take a decision; return the step as it stays in the trajectory, or None to leave it out."""


class InMemory:
    """An `EpisodeRecorder` that keeps everything, pixels too."""

    def begin(self, trajectory: Trajectory) -> Trajectory:
        """Add nothing."""
        return trajectory

    def step(self, step: Step) -> Step | None:
        """Keep it."""
        return step


class OutcomeOnly(InMemory):
    """An `EpisodeRecorder` that keeps no steps."""

    def step(self, step: Step) -> Step | None:
        """Keep nothing."""
        return None


def ignore_phase(phase: str) -> None:
    """Take no note."""


async def play(
    policy: Policy,
    session: PlayableSession,
    task_id: str,
    *,
    seed: int = 0,
    policy_seed: int | None = None,
    max_steps: int | None = None,
    time_limit_s: float | None = None,
    turn_limit_s: float | None = None,
    pacing: str | None = None,
    accessibility: bool = False,
    recorder: EpisodeRecorder | None = None,
    on_phase: PhaseHook = ignore_phase,
) -> Trajectory:
    """Play one episode to its end.

    Args:
        policy: who decides; `reset` is called here, unless the environment is lost before there is anything to see.
        session: the desktop.
        task_id: what to play.
        seed: of the task's initial state.
        policy_seed: of the policy's own choices; `seed` where None.
        max_steps: most actions; None for the task's own limit.
        time_limit_s: seconds that the episode may take, looked at after each step, which then ends as TIME_LIMIT; None
            for no limit.
        turn_limit_s: seconds that one decision may take; a policy that takes longer ends the episode as MODEL_ERROR.
            None for no limit.
        pacing: how long the desktop waits for its screen, a name of `sessions.reset_request`; None for the default.
        accessibility: whether observations hold the accessibility tree.
        recorder: gets every step as it is made, and decides which of its parts stay in memory; None keeps everything.
        on_phase: told which phase begins.

    Returns:
        The record of the episode, with the steps that the recorder keeps.

    Raises:
        dart_gym.core.errors.DartGymError: the task is unknown, or the cluster cannot be reached.
        ValueError: the policy decided on nothing at all.
    """
    recorder = recorder or InMemory()
    timings = _Timings()
    on_phase("reset")
    started = time.perf_counter()
    wanted: dict[str, Any] = {"accessibility": True} if accessibility else {}
    result = await session.reset(
        task_id, seed=seed, max_steps=max_steps, time_limit_s=time_limit_s, pacing=pacing, **wanted
    )
    timings.add_operation("reset", time.perf_counter() - started, result)
    instruction, task_hash = result.observation.instruction, str(result.info.get("task_hash", ""))
    repeats = bool(result.info.get("deterministic", True))
    trajectory = recorder.begin(Trajectory(task_id, seed, instruction, task_hash, deterministic=repeats))
    steps: list[Step] = []
    error, usage = "", Counter[str]()
    if result.terminal is None:
        policy.reset(Episode(task_id, instruction, seed if policy_seed is None else policy_seed))
    while result.terminal is None:
        on_phase("generate")
        observation, started = result.observation, time.perf_counter()
        decision = await decide(policy, observation, turn_limit_s)
        own = timings.add_decision(time.perf_counter() - started, decision)
        error = decision.error
        usage.update(decision.usage)  # dollars are no whole number
        on_phase("step")
        result = await _carry_out(session, decision, timings, own)
        kept = recorder.step(make_step(observation, decision, result, own))
        if kept is not None:
            steps.append(kept)
    if result.evaluation is None:  # StepResult guarantees it
        raise RuntimeError(f"{task_id} ended as {result.terminal} without an evaluation")
    ended = replace(
        trajectory,
        error=error,
        num_actions=result.step_index,
        timings=timings.seconds,
        usage=dict(usage),
        steps=tuple(steps),
    )
    return _judged(ended, result.terminal, result.evaluation)


def make_step(observation: Observation, decision: Decision, result: StepResult, timings: dict[str, float]) -> Step:
    """The record of one decision, with its pixels; `result` is of the last action that was carried out. Pure."""
    prompt, generation = decision.prompt, decision.generation
    height, width = observation.screenshot.shape[:2]
    after = result.observation.screenshot if result.terminal is not None else None
    step = Step(
        prompt_ids=prompt.token_ids if prompt is not None else (),
        text=decision.text,
        thought=decision.thought,
        actions=tuple(action_to_dict(action) for action in decision.actions),
        action_error=result.observation.action_error,
        timings=timings,
        screen=(width, height),
        error=decision.error,
        terminal=str(decision.terminal or ""),
        actor=decision.actor,
        advice=decision.advice,
        progress=_progress(result),
        pixels=Pixels(observation.screenshot, prompt.images if prompt is not None else (), after),
    )
    if generation is None:
        return step
    return replace(
        step,
        response_ids=generation.response_ids,
        logprobs=generation.logprobs,
        version=generation.version,
        engine=generation.engine,
        finish_reason=generation.finish_reason,
        entropy=generation.entropy,
        routing=generation.routing,
    )


def _progress(result: StepResult) -> float | None:
    """Return how far the task is, if its scenario knows."""
    found = result.info.get("progress")
    return float(found) if isinstance(found, (int, float)) and math.isfinite(found) else None


def lost_by(terminal: TerminalState, evaluation: Evaluation) -> str:
    """Return what lost an episode: "engine", "environment", "evaluation" or "cluster"; "" where it counts."""
    if evaluation.score is not None and terminal.trainable:
        return ""
    if terminal is TerminalState.MODEL_ERROR:
        return "engine"
    if evaluation.evaluator == CLUSTER_EVALUATOR:
        return "cluster"
    return "evaluation" if evaluation.status is EvaluationStatus.EVALUATION_ERROR else "environment"


def _judged(trajectory: Trajectory, terminal: TerminalState, evaluation: Evaluation) -> Trajectory:
    lost = lost_by(terminal, evaluation)
    return replace(
        trajectory,
        terminal=terminal,
        score=evaluation.score if not lost else None,
        status=str(evaluation.status),
        evaluator=evaluation.evaluator,
        detail=(trajectory.error if lost == "engine" else "") or evaluation.detail,
        lost_by=lost,
        ended_at=time.time(),
    )


async def decide(policy: Policy, observation: Observation, limit_s: float | None) -> Decision:
    """Ask the policy, for as long as it may think."""
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            with waiting_for(f"a decision of {type(policy).__name__}", limit_s):
                return await policy.act(observation)
    except TimeoutError:
        if not limit.expired():  # the policy's own
            raise
        return Decision(terminal=TerminalState.MODEL_ERROR, error=f"no decision within {limit_s:g} s")
    except DartGymError:
        raise
    except Exception as error:  # of somebody's policy: this episode is lost, and says why, and the others go on
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(policy).__name__} raised {type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
        _log.debug("%s", said, exc_info=error)
        return Decision(terminal=TerminalState.MODEL_ERROR, error=f"{said}: {error}")


async def _carry_out(
    session: PlayableSession, decision: Decision, timings: _Timings, own: dict[str, float]
) -> StepResult:
    """Perform the actions of a decision until the episode ends, or end it where the policy gave up."""
    if decision.terminal is not None:
        started = time.perf_counter()
        result = await session.finish(decision.terminal)
        timings.add_operation("step", time.perf_counter() - started, result)
        return result
    if not decision.actions:
        raise ValueError("a policy must decide on at least one action or set Decision.terminal")
    for action in decision.actions:
        started = time.perf_counter()
        result = await session.step(action)
        for name, seconds in timings.add_operation("step", time.perf_counter() - started, result).items():
            own[name] = own.get(name, 0.0) + seconds
        if result.terminal is not None:
            break
    return result


@dataclass(slots=True)
class _Timings:
    """Seconds by phase of one episode."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def add_decision(self, waited: float, decision: Decision) -> dict[str, float]:
        """Count a decision; return the beginning of its own timings."""
        self.add("generate", waited)
        own = {"generate": waited}
        if decision.generation is not None:
            own["engine_queue"], own["engine"] = decision.generation.seconds
            self.add("engine", own["engine"])
        return own

    def add_operation(self, name: str, wall: float, result: StepResult) -> dict[str, float]:
        """Count an operation of the session; return what the server reported."""
        reported = result.timings
        queued, evaluated = reported.get("queue", 0.0), reported.get("evaluate", 0.0)
        total = reported.get("total", wall)
        self.add(name, max(0.0, total - queued - evaluated))
        self.add("queue", queued)
        self.add("evaluate", evaluated)
        self.add("wire", max(0.0, wall - total))
        return reported
