"""One rollout: an episode (`dart_agent.episodes.play`) as the scheduler assigned it, and what it leaves behind.

Invariants:
    - Nothing that a policy, a desktop or a task's set-up does wrong raises here; what raises is the loss of the
      cluster's connection. What was played until then is not lost: `Rollout.cut_off`.
    - A step is kept exactly when an engine answered: its prompt and sampled ids are the engine's own, untouched.
    - Only what ended in a trainable state with a score is `trainable`; an error never becomes a reward of 0.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dart_agent.episodes.play import PlayedStep as AgentStep
from dart_agent.episodes.play import ignore_phase, play_episode
from dart_agent.policies.policy import Decision, PlayableSession, Policy
from dart_gym.core.actions import action_to_dict
from dart_gym.core.errors import TaskError, UnknownTaskError
from dart_gym.core.outcomes import TerminalState
from dart_train.core.trajectory import Step, Trajectory
from dart_train.rollout.schedule.scheduler import Assignment

PHASES = ("idle", "connect", "reset", "generate", "step")
"""What a worker can be doing."""


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """One decision and what became of it."""

    decision: Decision
    action_error: str
    timings: dict[str, float]


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """A finished rollout, not yet converted for the data manager.

    Attributes:
        assignment: what was asked for.
        task_hash: content hash of the task's definition.
        instruction: as the policy saw it.
        terminal: how it ended.
        reward: score in [0, 1]; None if there is none.
        steps: the decisions that an engine or an oracle made.
        actions: how many actions were carried out.
        timings: seconds by phase.
        ended_at: Unix time.
        detail: what the environment, the evaluator or the policy says about a failure.
        lost_by: what lost it: "environment", "evaluation", "engine", "cluster", "stop"; "" where nothing did.
    """

    assignment: Assignment
    task_hash: str
    instruction: str
    terminal: TerminalState
    reward: float | None
    steps: tuple[PlayedStep, ...]
    actions: int
    timings: dict[str, float]
    ended_at: float
    detail: str = ""
    lost_by: str = ""

    @property
    def trainable(self) -> bool:
        """Whether it counts as a member of its group."""
        return self.terminal.trainable and self.reward is not None and bool(self.steps)

    @property
    def image_bytes(self) -> int:
        """Memory that its screenshots hold, each counted once."""
        images = {id(image): image.nbytes for step in self.steps for image in _images(step)}
        return sum(images.values())


@dataclass(frozen=True, slots=True)
class Limits:
    """Time that a rollout may take.

    Attributes:
        episode_s: from its first screen on, looked at after each step; then it ends as TIME_LIMIT, and is scored.
        turn_s: for one decision; then it ends as MODEL_ERROR, and is not.
    """

    episode_s: float | None = None
    turn_s: float | None = None


@dataclass(slots=True)
class Rollout:
    """One assignment while it is played. What there is of it can be taken at any time.

    Attributes:
        assignment: what is played.
        steps: the decisions so far.
    """

    assignment: Assignment
    steps: list[PlayedStep] = field(default_factory=list)
    _task_hash: str = ""
    _instruction: str = ""

    async def play(
        self,
        session: PlayableSession,
        policy: Policy,
        on_phase: Callable[[str], None] = ignore_phase,
        *,
        pacing: str | None = None,
        limits: Limits = Limits(),
    ) -> PlayedEpisode:
        """Play it to its end. Call it once.

        Args:
            session: a desktop.
            policy: who decides; `reset` is called here.
            on_phase: told which of `PHASES` begins.
            pacing: how long the desktop waits for its screen, "settle" (the default) or "osworld".
            limits: time that it may take.

        Raises:
            dart_gym.core.errors.ClusterError: the session is lost; the rollout is to be played again.
            dart_gym.core.errors.UnknownTaskError: there is no such task.
        """
        try:
            episode = await play_episode(
                session,
                policy,
                self.assignment.task_id,
                seed=self.assignment.seed,
                policy_seed=self.assignment.sampling_seed,
                max_steps=self.assignment.max_steps,
                time_limit_s=limits.episode_s,
                turn_limit_s=limits.turn_s,
                pacing=pacing,
                on_step=self._keep,
                on_phase=on_phase,
            )
        except UnknownTaskError:
            raise
        except TaskError as error:  # its definition or set-up is broken: no other task's business
            return self.cut_off(TerminalState.ENV_ERROR, f"{type(error).__name__}: {error}", "environment")
        return PlayedEpisode(
            assignment=self.assignment,
            task_hash=episode.task_hash,
            instruction=episode.instruction,
            terminal=episode.terminal,
            reward=episode.score,
            steps=tuple(self.steps),
            actions=episode.steps,
            timings=episode.timings,
            ended_at=episode.ended_at,
            detail=(episode.error if episode.lost_by == "engine" else "") or episode.evaluation.detail,
            lost_by=episode.lost_by,
        )

    def cut_off(self, terminal: TerminalState, detail: str, lost_by: str) -> PlayedEpisode:
        """What was played of it, as an episode without a score.

        Args:
            terminal: one that is not trainable.
            detail: what happened.
            lost_by: see `PlayedEpisode`.
        """
        spent = {
            phase: sum(step.timings.get(name, 0.0) for step in self.steps)
            for phase, name in (("step", "total"), ("generate", "generate"), ("engine", "engine"))
        }
        return PlayedEpisode(
            assignment=self.assignment,
            task_hash=self._task_hash,
            instruction=self._instruction,
            terminal=terminal,
            reward=None,
            steps=tuple(self.steps),
            actions=sum(len(step.decision.actions) for step in self.steps),
            timings=spent,
            ended_at=time.time(),
            detail=detail,
            lost_by=lost_by,
        )

    def _keep(self, step: AgentStep) -> None:
        self._instruction = step.observation.instruction
        self._task_hash = str(step.result.info.get("task_hash", ""))
        if step.decision.prompt is not None and step.decision.generation is not None:
            self.steps.append(PlayedStep(step.decision, step.result.observation.action_error, step.timings))


def new_trajectory_id(assignment: Assignment) -> str:
    """A name for people that no other trajectory has, fit for a directory whatever the task is called."""
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", assignment.task_id).strip("-.")[:100]
    return f"{slug or 'task'}.s{assignment.seed}.{assignment.n}.{uuid.uuid4().hex[:10]}"


def to_trajectory(
    played: PlayedEpisode,
    *,
    run_id: str,
    hash_image: Callable[[NDArray[np.uint8]], str],
    source: str = "rollout",
) -> tuple[Trajectory, dict[str, NDArray[np.uint8]]]:
    """Convert for the data manager.

    Returns:
        The trajectory, and the images of its prompts by hash.
    """
    images: dict[str, NDArray[np.uint8]] = {}
    hashes: dict[int, str] = {}  # by identity: a frame stays in the prompts of several steps

    def image_id(image: NDArray[np.uint8]) -> str:
        known = hashes.get(id(image))
        if known is None:
            known = hashes[id(image)] = hash_image(image)
            images[known] = image
        return known

    assignment = played.assignment
    trajectory = Trajectory(
        trajectory_id=new_trajectory_id(assignment),
        run_id=run_id,
        task_id=assignment.task_id,
        task_hash=played.task_hash,
        instruction=played.instruction,
        seed=assignment.seed,
        group_key=assignment.group_key,
        terminal=played.terminal,
        reward=played.reward,
        steps=tuple(_to_step(step, image_id) for step in played.steps),
        source=source,
        timings=played.timings,
        created_at=played.ended_at,
    )
    return trajectory, images


def _images(step: PlayedStep) -> tuple[NDArray[np.uint8], ...]:
    return step.decision.prompt.images if step.decision.prompt is not None else ()


def _to_step(step: PlayedStep, image_id: Callable[[NDArray[np.uint8]], str]) -> Step:
    decision = step.decision
    prompt, generation = decision.prompt, decision.generation
    if prompt is None or generation is None:
        raise ValueError("a recorded step needs the prompt and the generation of its decision")
    return Step(
        prompt_ids=prompt.token_ids,
        image_hashes=tuple(image_id(image) for image in prompt.images),
        response_ids=generation.response_ids,
        logprobs=generation.logprobs,
        version=generation.version,
        text=decision.text,
        thought=decision.thought,
        actions=tuple(action_to_dict(action) for action in decision.actions),
        action_error=step.action_error,
        timings=step.timings,
        engine=generation.engine,
    )
