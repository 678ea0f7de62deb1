"""A fixed list of episodes on several desktops: evaluations, baselines, demonstrations. Training deals its rollouts.

Invariants:
    - An episode that environment, evaluator or engine lost is played again a few times, then returned as lost.
    - What an episode does depends on its task and seed only, not on the other episodes or on their order.
    - A failed set-up, a dead desktop or a lost session costs one attempt at one episode; the list continues. An error
      that concerns all episodes (an unknown task, a cluster that is gone) ends the list.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from dart_agent.episodes.play import EpisodeRecorder, OutcomeOnly, play
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.policies.policy import PlayableSession, Policy, PolicyFactory
from dart_gym.cluster.wire.error_codes import ErrorCode
from dart_gym.core.errors import (
    ClusterError,
    DesktopError,
    EvaluationFailure,
    MissingDependencyError,
    NoOracleError,
    ServerDefectError,
    TaskError,
    UnknownTaskError,
)
from dart_gym.core.outcomes import TerminalState
from dart_gym.core.task_group import TaskGroup
from dart_gym.utils.backoff import backoff
from dart_gym.utils.waits import retrying

ATTEMPTS = 3
"""Attempts at an episode that the environment lost."""

EVERYONES = frozenset({
    ErrorCode.UNREACHABLE, ErrorCode.SHUTDOWN, ErrorCode.AUTH, ErrorCode.PROTOCOL, ErrorCode.CONFIGURATION,
})  # fmt: skip
"""Codes of a `ClusterError` that every other session meets as well."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Before another attempt at an episode whose session was lost."""

R = TypeVar("R", bound=EpisodeRecorder)
EpisodeKey = tuple[str, int]
"""(task id, seed of the initial state) of an episode."""


class SessionSource(Protocol):
    """Where sessions come from: `dart_gym.cluster.client.cluster_client.ClusterClient` is one."""

    def session(self) -> AbstractAsyncContextManager[Any]:
        """A new session, to be used with `async with`."""


class EpisodeStore(Protocol[R]):
    """Records the episodes of a list, and knows which are done."""

    def known(self) -> Mapping[EpisodeKey, Trajectory]:
        """Those that are not to be played: they are recorded, and count."""

    def recorder(self, key: EpisodeKey) -> AbstractContextManager[R]:
        """The recorder of one attempt at an episode; what is not finished is dropped."""

    def finish(self, recorder: R, trajectory: Trajectory) -> None:
        """Keep what was recorded: it counts, or was lost in every attempt."""


class NotStored:
    """An `EpisodeStore` that keeps nothing but outcomes."""

    def known(self) -> Mapping[EpisodeKey, Trajectory]:
        """Nothing is done."""
        return {}

    def recorder(self, key: EpisodeKey) -> AbstractContextManager[OutcomeOnly]:
        """Keep no steps."""
        return nullcontext(OutcomeOnly())

    def finish(self, recorder: OutcomeOnly, trajectory: Trajectory) -> None:
        """There is nothing to keep."""


async def play_list(
    sessions: SessionSource,
    make_policy: PolicyFactory,
    episodes: Sequence[EpisodeKey],
    *,
    concurrency: int = 1,
    attempts: int = ATTEMPTS,
    max_steps: int | None = None,
    task_steps: Mapping[str, int | None] | None = None,
    policy_seeds: int = 0,
    pacing: str | None = None,
    turn_limit_s: float | None = None,
    store: EpisodeStore[Any] | None = None,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play every episode of a list once; the outcomes, without steps, in the order of `episodes`.

    Arguments that `play` or `evaluate` has too mean the same; of `task_steps` each number counts instead of
    `max_steps`, `policy_seeds` is added to an episode's seed, and of `store` the episodes that it knows are not played
    again.

    Raises:
        dart_gym.core.errors.DartGymError: a task is unknown, or the cluster cannot be reached.
    """
    playing = _Playing(
        sessions,
        make_policy,
        store or NotStored(),
        attempts,
        max_steps,
        task_steps or {},
        policy_seeds,
        pacing,
        turn_limit_s,
        on_episode or (lambda episode: None),
    )
    known = playing.store.known()
    playing.outcomes = {key: known[key] for key in episodes if key in known}
    playing.work = [key for key in episodes if key not in known][::-1]
    try:
        async with TaskGroup() as group:
            for _ in range(min(max(1, concurrency), len(playing.work))):
                group.create_task(playing.player())
    except ExceptionGroup as group_error:  # what one player met ended the others: it is what there is to say
        raise group_error.exceptions[0] from None
    return [playing.outcomes[key] for key in episodes]


@dataclass(slots=True)
class _Playing:
    """A list that is being played; fields as the arguments of `play_list`.

    Attributes:
        work: episodes that are to be played, the next one last.
        tried: attempts that an episode has had.
    """

    sessions: SessionSource
    make_policy: PolicyFactory
    store: EpisodeStore[Any]
    attempts: int
    max_steps: int | None
    task_steps: Mapping[str, int | None]
    policy_seeds: int
    pacing: str | None
    turn_limit_s: float | None
    on_episode: Callable[[Trajectory], None]
    work: list[EpisodeKey] = field(default_factory=list)
    outcomes: dict[EpisodeKey, Trajectory] = field(default_factory=dict)
    tried: Counter[EpisodeKey] = field(default_factory=Counter)

    async def player(self) -> None:
        """Play on one session after the other until nothing is left."""
        while self.work:
            key = self.work.pop()
            try:
                async with self.sessions.session() as session:
                    policy = self.make_policy(session)
                    while await self._ended(policy, session, key) and not self._lost_session(key) and self.work:
                        key = self.work.pop()
            except ClusterError as error:
                if not lost_to(error) or self.tried[key] >= self.attempts:
                    raise
                self.tried[key] += 1  # no session was to be had, or it could not be closed
            if key not in self.outcomes or (self._lost_session(key) and self.tried[key] < self.attempts):
                await asyncio.sleep(backoff(max(1, self.tried[key]), FIRST_PAUSE_S, LONGEST_PAUSE_S))
                self.work.append(key)

    def _lost_session(self, key: EpisodeKey) -> bool:
        return self.outcomes[key].lost_by == "cluster"

    async def _ended(self, policy: Policy, session: PlayableSession, key: EpisodeKey) -> bool:
        """Play an episode as often as the session allows; False where the session is lost and attempts are left."""
        for number in range(self.tried[key] + 1, self.attempts + 1):
            self.tried[key] = number
            outcome = self.outcomes[key] = await self._attempt(policy, session, key, number)
            if not outcome.lost_by:
                break
            if number < self.attempts:
                why = " ".join((outcome.detail or outcome.error or str(outcome.terminal)).split())[:200]
                retrying(f"an episode of {key[0]} was lost by the {outcome.lost_by} ({why})", 0.0)
            if outcome.lost_by == "cluster" and number < self.attempts:
                return False
        self.on_episode(self.outcomes[key])
        return True

    async def _attempt(self, policy: Policy, session: PlayableSession, key: EpisodeKey, number: int) -> Trajectory:
        """Play an episode once; recorded if it counts, or was the last attempt."""
        task, seed = key
        with self.store.recorder(key) as recorder:
            try:
                played = await play(
                    policy,
                    session,
                    task,
                    seed=seed,
                    policy_seed=seed + self.policy_seeds,
                    max_steps=self.task_steps.get(task) or self.max_steps,
                    pacing=self.pacing,
                    turn_limit_s=self.turn_limit_s,
                    recorder=recorder,
                )
            except Exception as error:
                lost_by = lost_to(error)
                if not lost_by:
                    raise
                broken = replace(lost(key, error, lost_by), attempts=number)
            else:
                played = replace(played, attempts=number)
                if not played.lost_by or number == self.attempts:
                    self.store.finish(recorder, played)
                return replace(played, steps=())
        if number == self.attempts:
            with self.store.recorder(key) as recorder:  # what the error left of the first one is no whole episode
                self.store.finish(recorder, recorder.begin(broken))
        return broken


def lost_to(error: BaseException) -> str:
    """Return what an error while playing says lost the episode, as `Trajectory.lost_by`; "" where all are concerned."""
    if isinstance(error, UnknownTaskError | NoOracleError):
        return ""
    if isinstance(error, TaskError | DesktopError | MissingDependencyError | ServerDefectError):
        return "environment"
    if isinstance(error, EvaluationFailure):
        return "evaluation"
    if isinstance(error, ClusterError) and error.code not in EVERYONES:
        return "cluster"
    return ""


def lost(key: EpisodeKey, error: BaseException, lost_by: str) -> Trajectory:
    """The record of an episode that an error ended."""
    task, seed = key
    detail = f"{type(error).__name__}: {error}"
    return Trajectory(task, seed, terminal=TerminalState.ENV_ERROR, detail=detail, lost_by=lost_by)
