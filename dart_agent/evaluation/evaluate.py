"""Scores policies: a policy on tasks times seeds, with confidence intervals.

Invariants:
    - An episode that the environment, its evaluator or an engine lost has no score: it never counts as a failure of
      the policy.
    - An evaluation that was killed and resumed ends with the same numbers as one that was not.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from dart_agent.episodes.play_list import ATTEMPTS, SessionSource, play_list
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.evaluation.evaluation_directory import EvaluationDirectory
from dart_agent.evaluation.scores import TaskScore, score_task
from dart_agent.policies.policy import Policy, PolicyFactory
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.client.private_cluster import LocalCluster


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
    turn_limit_s: float | None = None,
    directory: EvaluationDirectory | None = None,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[TaskScore]:
    """Play every task with every seed.

    Args:
        sessions: a `ClusterClient`, or whatever opens sessions.
        make_policy: makes one policy per session.
        tasks: task ids.
        seeds: of the initial states; also the policies' own.
        concurrency: sessions at the same time.
        max_steps: most actions of an episode; None for the tasks' own limits.
        pacing: how long desktops wait for their screens, a name of `sessions.reset_request`; None for the default.
        attempts: how often an episode is played that is lost.
        turn_limit_s: seconds that one decision may take; see `play`.
        directory: records every episode there; episodes that it holds already are counted, not played.
        on_episode: told about each episode that is played, as it ends.

    Returns:
        One score per task in the order of `tasks`.

    Raises:
        dart_gym.core.errors.DartGymError: a task is unknown, or the cluster cannot be reached.
    """
    seeds = list(seeds)
    played = await play_list(
        sessions,
        make_policy,
        [(task, seed) for task in tasks for seed in seeds],
        concurrency=concurrency,
        max_steps=max_steps,
        pacing=pacing,
        attempts=attempts,
        turn_limit_s=turn_limit_s,
        store=directory,
        on_episode=on_episode,
    )
    return [score_task(task, [one for one in played if one.task_id == task]) for task in tasks]


@asynccontextmanager
async def open_cluster(
    url: str | None = None, token: str | None = None, *, desktops: int = 1, timeout_s: float | None = None
) -> AsyncIterator[ClusterClient]:
    """A running cluster, or without a URL a private one, which ends with the context.

    Args:
        url: of the running cluster.
        token: that it wants.
        desktops: of a private one.
        timeout_s: how long a running one may take to answer, at first and after a lost connection.
    """
    if url is not None:
        settings = ClientSettings()
        if timeout_s is not None:
            settings = ClientSettings(reconnect_s=timeout_s, answer_s=timeout_s)
        yield ClusterClient(url, token, settings)
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
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[TaskScore]:
    """Score a policy of one's own, cluster included: `evaluate` for a caller that has only a class.

        scores = asyncio.run(evaluate_policy(MyPolicy, ["miniwob/click-test"], episodes=5))

    Args:
        make_policy: called without arguments, once per desktop: a class, or a function that returns a policy.
        tasks: task ids.
        episodes: per task, with the seeds `first_seed`, `first_seed + 1`, ...
        first_seed: of the first episode of each task.
        concurrency: desktops at the same time.
        max_steps: most actions of an episode; None for the tasks' own limits.
        url: address of a running cluster; None starts a private one.
        token: bearer token of that cluster, if it wants one.
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
