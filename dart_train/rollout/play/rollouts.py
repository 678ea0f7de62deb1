"""A rollout: an episode (`dart_agent.episodes.play`) that the scheduler has assigned, and its trajectory.

Invariants:
    - No fault of a policy, a desktop, a task's set-up or a suite's code raises here. Only a lost connection to the
      cluster raises, and the decisions until then are kept: `Rollout.cut_off`.
    - A step is kept exactly if an engine answered; its prompt and sampled ids are the engine's own, unchanged.
    - A running rollout holds only the pixels of the newest prompt; older ones wait as PNGs to be recorded.
    - A continuation of a fork keeps only the steps after the fork. If the fork is not reached as it was recorded, the
      rollout ends as INTERRUPTED, lost by "fork".
    - Only a rollout that ended in a trainable state with a score is trainable; an error never becomes a score of 0.
"""

import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from dart_agent.episodes.play import ignore_phase, play
from dart_agent.episodes.screenshots import pack
from dart_agent.episodes.trajectory import Image, Pixels, Step, Trajectory
from dart_agent.policies.policy import PlayableSession, Policy
from dart_gym.core.errors import (
    DesktopError,
    EvaluationFailure,
    MissingDependencyError,
    ServerDefectError,
    TaskError,
    UnknownTaskError,
)
from dart_gym.core.outcomes import TerminalState
from dart_train.rollout.forks.replay import ACTOR as REPLAY
from dart_train.rollout.forks.replay import ForkDiffersError, RecallingPolicy, Replaying
from dart_train.rollout.schedule.scheduler import Assignment
from dart_train.rollout.teachers.teaching import Teaching

PHASES = ("idle", "connect", "reset", "generate", "step")
"""The phases of a worker."""
FORK = "fork"
"""`source` of continuations, and `lost_by` of those whose replay came out differently."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of a rollout."""

    episode_s: float | None = None
    turn_s: float | None = None


class GroupOver(Exception):
    """The rollout's group takes no more members, so nobody waits for its result."""


@dataclass(slots=True)
class Rollout:
    """One assignment and its trajectory. It is the `EpisodeRecorder` of its own episode.

    Attributes:
        source: source of the trajectory: "rollout", the name of a demonstrator, or "fork" for a continuation.
        teaching: lets the teacher observe each state.
        keeps_last: whether the last screen is kept, for judges.
        over: called after each step with the key of the group; True breaks the rollout off.
    """

    assignment: Assignment
    source: str = "rollout"
    over: Callable[[str], bool] | None = None
    teaching: Teaching | None = None
    keeps_last: bool = False
    trajectory: Trajectory = field(init=False)
    _replaying: Replaying | None = field(default=None, init=False)
    _replayed: list[dict[str, float]] = field(default_factory=list, init=False)  # timings of the replayed decisions
    _packed: dict[int, tuple[Image, Image]] = field(default_factory=dict, init=False)  # by identity, while held

    def __post_init__(self) -> None:
        self.trajectory = self.begin(Trajectory(self.assignment.task_id, self.assignment.seed))

    async def play(
        self,
        session: PlayableSession,
        policy: Policy,
        on_phase: Callable[[str], None] = ignore_phase,
        *,
        pacing: str | None = None,
        limits: Limits = Limits(),
    ) -> Trajectory:
        """Play the rollout to its end. Call this once.

        Raises:
            dart_gym.core.errors.ClusterError: if the session is lost; the rollout must be played again.
            dart_gym.core.errors.UnknownTaskError: if there is no such task.
            GroupOver: if its group takes no more members.
        """
        if self.assignment.fork is not None:
            policy = self._replaying = Replaying(cast("RecallingPolicy", policy), self.assignment.fork)
        if self.teaching is not None:
            policy = self.teaching.advised(policy, session)
        try:
            self.trajectory = await play(
                policy,
                session,
                self.assignment.task_id,
                seed=self.assignment.seed,
                policy_seed=self.assignment.sampling_seed,
                max_steps=self.assignment.max_steps,
                time_limit_s=limits.episode_s,
                turn_limit_s=limits.turn_s,
                pacing=pacing,
                accessibility=self.teaching is not None and self.teaching.wants_tree,
                recorder=self,
                on_phase=on_phase,
            )
        except UnknownTaskError:
            raise
        except ForkDiffersError as error:
            return self.cut_off(TerminalState.INTERRUPTED, str(error), FORK)
        except (TaskError, DesktopError, MissingDependencyError, EvaluationFailure, ServerDefectError) as error:
            # The task's definition, set-up, suite or a program is broken, which does not concern other tasks.
            return self.cut_off(TerminalState.ENV_ERROR, f"{type(error).__name__}: {error}", "environment")
        if self._replaying is not None and not self._replaying.arrived and not self.trajectory.lost_by:
            step, ended = self._replaying.replayed, self.trajectory.terminal
            return self.cut_off(TerminalState.INTERRUPTED, f"it ended as {ended} while step {step} was replayed", FORK)
        return self.trajectory

    def begin(self, trajectory: Trajectory) -> Trajectory:
        """Give the trajectory its id and its group."""
        name, group = new_trajectory_id(self.assignment), self.assignment.group_key
        self.trajectory = replace(trajectory, trajectory_id=name, group_key=group, source=self.source)
        if (fork := self.assignment.fork) is not None:
            self.trajectory = replace(self.trajectory, source=FORK, forked_from=fork.parent, fork_step=fork.step)
        return self.trajectory

    def step(self, step: Step) -> Step | None:
        """Keep a decision of an engine, without the screen: training uses the images of the prompt."""
        goes_on = step.pixels is None or step.pixels.after is None
        kept = None
        if step.actor == REPLAY:
            self._replayed.append(step.timings)
        if step.pixels is not None and step.generated:
            shown = step.pixels.prompt
            self._packed = {id(image): self._packed.get(id(image)) or (image, pack(image)) for image in shown}
            after = step.pixels.after if self.keeps_last else None
            kept = replace(step, pixels=Pixels(prompt=tuple(self._packed[id(one)][1] for one in shown), after=after))
            self.trajectory = replace(self.trajectory, steps=(*self.trajectory.steps, kept))
        if goes_on and self.over is not None and self.over(self.assignment.group_key):
            raise GroupOver(self.assignment.group_key)
        return kept

    def cut_off(self, terminal: TerminalState, detail: str, lost_by: str) -> Trajectory:
        """End the rollout in a terminal state that is not trainable, with its decisions so far and without a score."""
        steps = self.trajectory.steps
        timings = [*self._replayed, *(step.timings for step in steps)]
        spent = {
            phase: sum(own.get(name, 0.0) for own in timings)
            for phase, name in (("step", "total"), ("generate", "generate"), ("engine", "engine"))
        }
        self.trajectory = replace(
            self.trajectory,
            terminal=terminal,
            score=None,
            status="",
            detail=detail,
            lost_by=lost_by,
            num_actions=sum(len(step.actions) for step in (*self._prefix(), *steps)),
            timings=spent,
            ended_at=time.time(),
        )
        return self.trajectory

    def _prefix(self) -> Sequence[Step]:
        """Return the replayed decisions."""
        fork = self.assignment.fork
        return fork.prefix[: len(self._replayed)] if fork is not None else ()


def new_trajectory_id(assignment: Assignment) -> str:
    """Return a readable and unique name of a trajectory, which is fit for a directory whatever the task is called."""
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", assignment.task_id).strip("-.")[:100]
    return f"{slug or 'task'}.s{assignment.seed}.{assignment.n}.{uuid.uuid4().hex[:10]}"
