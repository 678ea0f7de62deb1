"""One rollout: an episode (`dart_agent.episode`) as the scheduler assigned it, and what it leaves behind.

Invariants:
    - Nothing that a policy or a desktop does wrong raises here; what raises is the loss of the cluster's connection.
    - A step is kept exactly when an engine answered: its prompt and sampled ids are the engine's own, untouched.
    - Only what ended in a trainable state with a score is `trainable`; an error never becomes a reward of 0.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dart_agent.episode import PlayableSession, play_episode
from dart_agent.episode import PlayedStep as AgentStep
from dart_agent.policies.policy import Decision, Policy
from dart_gym.actions import action_to_dict
from dart_gym.outcomes import TerminalState
from dart_train.rollout.scheduler import Assignment
from dart_train.trajectory import Step, Trajectory

PHASES = ("idle", "connect", "reset", "generate", "step")
"""What a desktop slot can be doing."""


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
        detail: what the environment or evaluator says about a failure.
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

    @property
    def trainable(self) -> bool:
        """Whether it counts as a member of its group."""
        return self.terminal.trainable and self.reward is not None and bool(self.steps)


def _ignore_phase(phase: str) -> None:
    """Take no note."""


async def play(
    session: PlayableSession,
    policy: Policy,
    assignment: Assignment,
    on_phase: Callable[[str], None] = _ignore_phase,
    *,
    pacing: str | None = None,
) -> PlayedEpisode:
    """Play one rollout.

    Args:
        session: a desktop.
        policy: who decides; `begin` is called here.
        assignment: what to play.
        on_phase: told which of `PHASES` begins.
        pacing: how long the desktop waits for its screen, a name of `dart_gym.pacing`; "settle" by default.

    Raises:
        dart_gym.errors.ClusterError: the session is lost; the rollout is to be played again.
    """
    steps: list[PlayedStep] = []

    def keep(step: AgentStep) -> None:
        if step.decision.prompt is not None and step.decision.generation is not None:
            steps.append(PlayedStep(step.decision, step.result.observation.action_error, step.timings))

    episode = await play_episode(
        session,
        policy,
        assignment.task_id,
        seed=assignment.seed,
        policy_seed=assignment.sampling_seed,
        max_steps=assignment.max_steps,
        pacing=pacing,
        on_step=keep,
        on_phase=on_phase,
    )
    return PlayedEpisode(
        assignment=assignment,
        task_hash=episode.task_hash,
        instruction=episode.instruction,
        terminal=episode.terminal,
        reward=episode.score,
        steps=tuple(steps),
        actions=episode.steps,
        timings=episode.timings,
        ended_at=episode.ended_at,
        detail=episode.evaluation.detail,
    )


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


def _to_step(step: PlayedStep, image_id: Callable[[NDArray[np.uint8]], str]) -> Step:
    decision = step.decision
    prompt, generation = decision.prompt, decision.generation
    if prompt is None or generation is None:
        raise ValueError("a recorded step needs the prompt and the generation of its decision")
    return Step(
        prompt_ids=prompt.token_ids,
        image_hashes=tuple(image_id(image) for image in prompt.images),
        sampled_ids=generation.token_ids,
        logprobs=generation.logprobs,
        version=generation.version,
        text=decision.text,
        thought=decision.thought,
        actions=tuple(action_to_dict(action) for action in decision.actions),
        action_error=step.action_error,
        timings=step.timings,
        engine=generation.engine,
    )
