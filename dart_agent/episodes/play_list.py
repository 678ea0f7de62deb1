"""A fixed list of episodes on several desktops: evaluations, baselines, demonstrations. Training deals its rollouts.

Invariants:
    - An episode that environment, evaluator or engine lost is played again a few times, then returned as lost.
    - What an episode does depends on its task and seed only, not on the other episodes or on their order.
    - What one session meets that is no episode's business (an unknown task, a cluster that is gone) ends all of them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from dart_agent.episodes.play import EpisodeRecorder, OutcomeOnly, play
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.policies.policy import PlayableSession, Policy, PolicyFactory

ATTEMPTS = 3
"""How often an episode that the environment lost is played."""

R = TypeVar("R", bound=EpisodeRecorder)
EpisodeKey = tuple[str, int]
"""(task id, seed of the initial state) of an episode."""


class SessionSource(Protocol):
    """Where sessions come from: `dart_gym.cluster.client.cluster_client.ClusterClient` is one."""

    def session(self) -> AbstractAsyncContextManager[Any]:
        """A new session, to be used with `async with`."""


class EpisodeStore(Protocol[R]):
    """Records the episodes of a list, and knows those that are done."""

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
    store = store or NotStored()
    known = store.known()
    outcomes = {key: known[key] for key in episodes if key in known}
    work = [key for key in episodes if key not in known][::-1]

    async def attempt(policy: Policy, session: PlayableSession, key: EpisodeKey, number: int) -> Trajectory:
        task, seed = key
        with store.recorder(key) as recorder:
            played = await play(
                policy,
                session,
                task,
                seed=seed,
                policy_seed=seed + policy_seeds,
                max_steps=(task_steps or {}).get(task) or max_steps,
                pacing=pacing,
                recorder=recorder,
            )
            played = replace(played, attempts=number)
            if not played.lost_by or number == attempts:
                store.finish(recorder, played)
        return replace(played, steps=())

    async def player() -> None:
        if not work:
            return
        async with sessions.session() as session:
            policy = make_policy(session)
            while work:
                key = work.pop()
                for number in range(1, attempts + 1):
                    outcome = outcomes[key] = await attempt(policy, session, key, number)
                    if not outcome.lost_by:
                        break
                if on_episode is not None:
                    on_episode(outcome)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(max(1, concurrency), len(work))):
                group.create_task(player())
    except ExceptionGroup as group_error:  # what one player met ended the others: it is what there is to say
        raise group_error.exceptions[0] from None
    return [outcomes[key] for key in episodes]
