from __future__ import annotations

import pytest

from dart_agent.episodes.play_list import EpisodeKey, play_list
from dart_agent.policies.oracle_policy import OraclePolicy
from dart_agent.policies.policy import Decision, Episode
from dart_agent.policies.random_policy import RandomPolicy
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.core.errors import UnknownTaskError
from dart_gym.core.outcomes import Observation, TerminalState
from dart_train.modules.evaluate_version import EpisodeLost, check_counted


def keys(task: str, count: int) -> list[EpisodeKey]:
    return [(task, seed) for seed in range(count)]


async def test_all_are_played_once_and_come_back_in_order(cluster_url):
    plan = keys("fake/two-steps", 30)
    told: list[int] = []
    played = await play_list(
        ClusterClient(cluster_url),
        lambda session: OraclePolicy(session.oracle),
        plan,
        concurrency=4,
        on_episode=lambda episode: told.append(episode.seed),
    )
    assert [(episode.task_id, episode.seed) for episode in played] == plan and sorted(told) == list(range(30))
    assert all(episode.score == 1.0 and episode.num_actions == 2 and episode.steps == () for episode in played)


async def test_an_unknown_task_ends_it(cluster_url):
    with pytest.raises(UnknownTaskError):
        await play_list(
            ClusterClient(cluster_url),
            lambda session: OraclePolicy(session.oracle),
            keys("fake/nothing", 3),
            concurrency=2,
        )


class Broken:
    """An engine that never answers, as a policy shows it."""

    def reset(self, episode: Episode) -> None:
        """Nothing to do."""

    async def act(self, observation: Observation) -> Decision:
        return Decision(error="no engine", terminal=TerminalState.MODEL_ERROR)


async def test_an_episode_that_is_always_lost_is_reported_not_scored(cluster_url):
    played = await play_list(
        ClusterClient(cluster_url), lambda session: Broken(), keys("fake/two-steps", 2), attempts=4
    )
    assert [(episode.lost_by, episode.score, episode.attempts) for episode in played] == [("engine", None, 4)] * 2
    with pytest.raises(EpisodeLost, match=r"lost 4 times: model_error, no engine"):
        check_counted(played)


async def test_limits_and_seeds_of_the_policy(cluster_url):
    class Seen(RandomPolicy):
        def reset(self, episode: Episode) -> None:
            seeds.append(episode.seed)
            super().reset(episode)

    seeds: list[int] = []
    limits = {"fake/two-steps": 3, "fake/click-button": None}
    plan = [(task, seed) for task in limits for seed in (1, 2)]
    played = await play_list(
        ClusterClient(cluster_url), lambda _: Seen(), plan, max_steps=1, task_steps=limits, policy_seeds=100
    )
    assert seeds == [101, 102, 101, 102]
    assert all(one.num_actions <= (limits[one.task_id] or 1) for one in played)
    assert any(one.num_actions == 3 for one in played)
