"""One episode: reset, then policy and desktop in turn until it ends. The one loop that evaluation and training share.

Invariants:
    - Nothing that a policy's model or a desktop does wrong raises here: it is the episode's terminal state. What raises
      is the loss of the cluster's connection, an unknown task, or a mistake in the policy's own code.
    - An episode that the environment, its evaluator or an engine lost has no score that counts (`PlayedEpisode.lost`).
    - A policy that does not decide within its time ends the episode as MODEL_ERROR; it must let itself be cancelled.
    - `timings` holds seconds by phase. "reset", "step", "evaluate" and "queue" are the server's, "wire" is what lies
      between it and us, "generate" is the policy's, "engine" the part of it in which a model computed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dart_agent.policies.policy import Decision, Episode, PlayableSession, Policy
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState

CLUSTER_EVALUATOR = "cluster"
"""Stands for the evaluator in the result of an episode whose connection was lost."""


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """One decision and what became of it.

    Attributes:
        observation: what was seen.
        decision: what was decided.
        result: of the last action that was carried out.
        timings: seconds by phase, environment, policy and engine ("engine_queue": waited in the engine).
    """

    observation: Observation
    decision: Decision
    result: StepResult
    timings: dict[str, float]


StepHook = Callable[[PlayedStep], None]
"""Told after each decision."""

PhaseHook = Callable[[str], None]
"""Told which phase begins: "reset", "generate" or "step"."""


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """How an episode went.

    Attributes:
        task_id: what was played.
        seed: of the task's initial state.
        instruction: as the policy saw it.
        terminal: how it ended.
        evaluation: the score, or why there is none.
        steps: actions carried out.
        error: what the policy could not parse or answer; "" if nothing.
        timings: seconds by phase, summed over the episode.
        task_hash: content hash of the task's definition: equal hashes mean comparable scores.
        ended_at: Unix time.
    """

    task_id: str
    seed: int
    instruction: str
    terminal: TerminalState
    evaluation: Evaluation
    steps: int
    error: str
    timings: dict[str, float]
    task_hash: str = ""
    ended_at: float = 0.0

    @property
    def score(self) -> float | None:
        """Score in [0, 1]; None where there is none."""
        return self.evaluation.score

    @property
    def success(self) -> bool:
        """Whether the task was accomplished."""
        return self.score is not None and self.score >= 1.0

    @property
    def lost(self) -> bool:
        """Whether environment, evaluator or engine failed, so that it says nothing about the policy."""
        return self.score is None or not self.terminal.trainable

    @property
    def lost_by(self) -> str:
        """What lost it: "engine", "environment", "evaluation" or "cluster" (the connection); "" where it counts."""
        if not self.lost:
            return ""
        if self.terminal is TerminalState.MODEL_ERROR:
            return "engine"
        if self.evaluation.evaluator == CLUSTER_EVALUATOR:
            return "cluster"
        return "evaluation" if self.evaluation.status is EvaluationStatus.EVALUATION_ERROR else "environment"


def ignore_phase(phase: str) -> None:
    """Take no note."""


def _ignore_step(step: PlayedStep) -> None:
    """Take no note."""


async def play_episode(
    session: PlayableSession,
    policy: Policy,
    task_id: str,
    *,
    seed: int = 0,
    policy_seed: int | None = None,
    max_steps: int | None = None,
    time_limit_s: float | None = None,
    turn_limit_s: float | None = None,
    pacing: str | None = None,
    on_step: StepHook = _ignore_step,
    on_phase: PhaseHook = ignore_phase,
) -> PlayedEpisode:
    """Play one episode to its end.

    Args:
        session: a desktop.
        policy: who decides; `reset` is called here, unless the environment is lost before there is anything to see.
        task_id: what to play.
        seed: of the task's initial state.
        policy_seed: of the policy's own choices; `seed` where None.
        max_steps: step limit; None for the task's own.
        time_limit_s: of the whole episode, looked at after each step, which then ends as TIME_LIMIT; None for none.
        turn_limit_s: of one decision; a policy that takes longer ends the episode as MODEL_ERROR. None for none.
        pacing: how long the desktop waits for its screen, a name of `dart_gym.sessions.pacing`; None for the default.
        on_step: told after each decision.
        on_phase: told which phase begins.

    Raises:
        dart_gym.core.errors.DartGymError: the task is unknown, or the cluster cannot be reached.
        ValueError: the policy decided on nothing at all.
    """
    timings = _Timings()
    on_phase("reset")
    started = time.perf_counter()
    result = first = await session.reset(
        task_id, seed=seed, max_steps=max_steps, time_limit_s=time_limit_s, pacing=pacing
    )
    timings.add_operation("reset", time.perf_counter() - started, result)
    instruction, error = first.observation.instruction, ""
    if result.terminal is None:
        policy.reset(Episode(task_id, instruction, seed if policy_seed is None else policy_seed))
    while result.terminal is None:
        on_phase("generate")
        observation, started = result.observation, time.perf_counter()
        decision = await _decide(policy, observation, turn_limit_s)
        own = timings.add_decision(time.perf_counter() - started, decision)
        error = decision.error
        on_phase("step")
        result = await _carry_out(session, decision, timings, own)
        on_step(PlayedStep(observation, decision, result, own))
    if result.evaluation is None:  # StepResult guarantees it
        raise RuntimeError(f"{task_id} ended as {result.terminal} without an evaluation")
    return PlayedEpisode(
        task_id=task_id,
        seed=seed,
        instruction=instruction,
        terminal=result.terminal,
        evaluation=result.evaluation,
        steps=result.step_index,
        error=error,
        timings=timings.seconds,
        task_hash=str(first.info.get("task_hash", "")),
        ended_at=time.time(),
    )


async def _decide(policy: Policy, observation: Observation, limit_s: float | None) -> Decision:
    """Ask the policy, for as long as it may think."""
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            return await policy.act(observation)
    except TimeoutError:
        if not limit.expired():  # the policy's own
            raise
        return Decision(terminal=TerminalState.MODEL_ERROR, error=f"no decision within {limit_s:g} s")


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
