"""Plays policies on tasks and counts: a policy on tasks times seeds, with confidence intervals.

Invariants:
    - An episode that the environment, its evaluator or an engine lost has no score. It is played again a few times,
      then reported as lost; it never counts as a failure of the policy.
    - What an episode does depends on its task and seed only, not on the other episodes or on their order: an
      evaluation that was killed and goes on ends with the numbers of one that was not.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from dart_agent.episodes.play import PlayedEpisode, play_episode
from dart_agent.episodes.records import make_record
from dart_agent.evaluation.evaluation_directory import EvaluationDirectory, app_of
from dart_agent.evaluation.scores import Outcome, TaskScore, score_task
from dart_agent.policies.policy import Policy, PolicyFactory
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.private_cluster import LocalCluster

ATTEMPTS = 3
"""How often an episode that the environment lost is played."""


class SessionSource(Protocol):
    """Where sessions come from: `dart_gym.cluster.client.cluster_client.ClusterClient` is one."""

    def session(self) -> AbstractAsyncContextManager[Any]:
        """A new session, to be used with `async with`."""


async def evaluate(
    sessions: SessionSource,
    make_policy: PolicyFactory,
    tasks: Sequence[str],
    seeds: Iterable[int],
    *,
    concurrency: int = 1,
    max_steps: int | None = None,
    pacing: str | None = None,
    attempts: int = ATTEMPTS,
    directory: EvaluationDirectory | None = None,
    on_episode: Callable[[Outcome], None] | None = None,
) -> list[TaskScore]:
    """Play every task with every seed.

    Args:
        sessions: a `ClusterClient`, or whatever opens sessions.
        make_policy: makes one policy per session.
        tasks: ids.
        seeds: of the initial states; also the policies' own.
        concurrency: sessions at the same time.
        max_steps: step limit; None for the tasks' own.
        pacing: how long desktops wait for their screens, a name of `dart_gym.sessions.pacing`; None for the default.
        attempts: how often an episode is played that the environment loses.
        directory: records every episode there; those that it has already are counted, not played.
        on_episode: told about each episode that is played, as it ends.

    Returns:
        One score per task in the order of `tasks`.

    Raises:
        dart_gym.core.errors.DartGymError: a task is unknown, or the cluster cannot be reached.
    """
    seeds = list(seeds)
    known = directory.known() if directory else {}
    played: dict[str, list[Outcome]] = {task: [] for task in tasks}
    for (task, seed), record in known.items():
        if task in played and seed in seeds:
            played[task].append(record)
    every = [(task, seed) for task in tasks for seed in seeds]  # task by task: a task change costs
    work = [pair for pair in every if pair not in known][::-1]

    async def player() -> None:
        if not work:
            return
        async with sessions.session() as session:
            policy = make_policy(session)
            play = functools.partial(play_episode, session, policy, max_steps=max_steps, pacing=pacing)
            while work:
                task, seed = work.pop()
                episode = await _play_counted(play, task, seed, attempts, directory)
                played[task].append(episode)
                if on_episode is not None:
                    on_episode(episode)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(max(1, concurrency), len(work))):
                group.create_task(player())
    except ExceptionGroup as group_error:  # what one player met ended the others: it is what there is to say
        raise group_error.exceptions[0] from None
    return [score_task(task, played[task]) for task in tasks]


async def _play_counted(
    play: Callable[..., Awaitable[PlayedEpisode]],
    task: str,
    seed: int,
    attempts: int,
    directory: EvaluationDirectory | None,
) -> Outcome:
    """Play an episode until it counts, at most `attempts` times; record the attempt that is kept."""
    for attempt in range(1, attempts + 1):
        if directory is None:
            episode = await play(task, seed=seed)
            if not episode.lost:
                break
            continue
        with directory.writer(task, seed) as writer:
            episode = await play(task, seed=seed, on_step=writer.step)
            if not episode.lost or attempt == attempts:
                record = make_record(episode, app=app_of(task), policy=directory.plan.policy, attempts=attempt)
                return directory.finish(writer, record)
    return episode


@asynccontextmanager
async def open_cluster(
    url: str | None = None, token: str | None = None, *, desktops: int = 1
) -> AsyncIterator[ClusterClient]:
    """A running cluster, or without a URL a private one, which ends with the context.

    Args:
        url: `ws+unix:///path.sock`, `ws://host:port` or `wss://host:port`.
        token: bearer token, if the cluster wants one.
        desktops: how many the private cluster may run at once.
    """
    if url is not None:
        yield ClusterClient(url, token)
    else:
        async with LocalCluster(desktops) as local:
            yield local.client()


async def evaluate_policy(
    make_policy: Callable[[], Policy],
    tasks: Sequence[str],
    *,
    episodes: int = 10,
    first_seed: int = 0,
    concurrency: int = 2,
    max_steps: int | None = None,
    url: str | None = None,
    token: str | None = None,
    on_episode: Callable[[Outcome], None] | None = None,
) -> list[TaskScore]:
    """Score a policy of one's own, cluster included: `evaluate` for those who have only a class.

        scores = asyncio.run(evaluate_policy(MyPolicy, ["miniwob/click-test"], episodes=5))

    Args:
        make_policy: called without arguments, once per desktop: a class, or a function that returns a policy.
        tasks: ids.
        episodes: per task, with the seeds `first_seed`, `first_seed + 1`, ...
        first_seed: see there.
        concurrency: desktops at the same time.
        max_steps: step limit; None for the tasks' own.
        url: of a running cluster; None starts a private one.
        token: of that cluster.
        on_episode: told about each episode that is played, as it ends.

    Returns:
        One score per task in the order of `tasks`.

    Raises:
        dart_gym.core.errors.DartGymError: a task is unknown, or no cluster can be started or reached.
    """
    async with open_cluster(url, token, desktops=concurrency) as client:
        return await evaluate(
            client,
            lambda session: make_policy(),
            tasks,
            range(first_seed, first_seed + episodes),
            concurrency=concurrency,
            max_steps=max_steps,
            on_episode=on_episode,
        )
