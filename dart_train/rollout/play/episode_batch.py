"""A fixed list of episodes on a few desktops: evaluations, baselines, demonstrations. Training uses the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from dart_agent.policies.policy import Policy
from dart_gym.cluster.client.client_session import ClientSession
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_train.core.train_errors import DartTrainError
from dart_train.rollout.play.rollout_episode import PlayedEpisode, Rollout
from dart_train.rollout.schedule.scheduler import Assignment

ATTEMPTS = 4
"""How often an episode that the environment lost is played again."""


class EpisodeLost(DartTrainError):
    """An episode could not be played to a score."""


async def play_all(
    client: ClusterClient,
    assignments: Iterable[Assignment],
    new_policy: Callable[[ClientSession], Policy],
    *,
    workers: int,
    told: Callable[[int, PlayedEpisode], None],
) -> list[PlayedEpisode]:
    """Play every assignment once.

    Args:
        client: of the cluster.
        assignments: what to play; the result is in this order.
        new_policy: makes the policy of one worker, which plays on that session.
        workers: sessions at the same time.
        told: called after each episode with the number of those done.

    Raises:
        EpisodeLost: an episode was lost `ATTEMPTS` times.
        DartGymError: a task is unknown, the cluster is gone.
    """
    work = list(enumerate(assignments))[::-1]
    results: dict[int, PlayedEpisode] = {}

    async def worker() -> None:
        async with client.session() as session:
            policy = new_policy(session)
            while work:
                index, assignment = work.pop()
                results[index] = await _play_until_scored(session, policy, assignment)
                told(len(results), results[index])

    running = [asyncio.create_task(worker()) for _ in range(min(workers, len(work)))]
    try:
        for task in asyncio.as_completed(running):
            await task
    finally:
        for worker_task in running:
            worker_task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return [results[index] for index in sorted(results)]


async def _play_until_scored(session: ClientSession, policy: Policy, assignment: Assignment) -> PlayedEpisode:
    for _ in range(ATTEMPTS):
        episode = await Rollout(assignment).play(session, policy)
        if episode.terminal.trainable and episode.reward is not None:
            return episode
    raise EpisodeLost(
        f"{assignment.task_id} seed {assignment.seed} was lost {ATTEMPTS} times: {episode.terminal}, "
        f"{episode.detail or 'no detail'}; the cluster's log may say why"
    )
