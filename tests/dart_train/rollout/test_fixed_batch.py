from __future__ import annotations

import pytest

from dart_agent.policies.oracle_policy import OraclePolicy
from dart_agent.policies.policy import Decision, Episode
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.core.errors import UnknownTaskError
from dart_gym.core.outcomes import Observation, TerminalState
from dart_train.rollout.play.episode_batch import EpisodeLost, play_all
from dart_train.rollout.schedule.scheduler import Assignment


def assignments(task: str, count: int) -> list[Assignment]:
    return [Assignment(task, seed, "", 0, 0, seed) for seed in range(count)]


async def test_all_are_played_once_and_come_back_in_order(cluster_url):
    plan = assignments("fake/two-steps", 30)
    told: list[int] = []
    played = await play_all(
        ClusterClient(cluster_url),
        plan,
        lambda session: OraclePolicy(session.oracle),
        workers=4,
        told=lambda done, episode: told.append(done),
    )
    assert [episode.assignment for episode in played] == plan and told == list(range(1, 31))
    assert all(episode.reward == 1.0 and episode.actions == 2 for episode in played)


async def test_an_unknown_task_ends_it(cluster_url):
    with pytest.raises(UnknownTaskError):
        await play_all(
            ClusterClient(cluster_url),
            assignments("fake/nothing", 3),
            lambda session: OraclePolicy(session.oracle),
            workers=2,
            told=lambda done, episode: None,
        )


class Broken:
    """An engine that never answers, as a policy shows it."""

    def reset(self, episode: Episode) -> None:
        """Nothing to do."""

    async def act(self, observation: Observation) -> Decision:
        return Decision(error="no engine", terminal=TerminalState.MODEL_ERROR)


async def test_an_episode_that_is_always_lost_is_reported_not_scored(cluster_url):
    with pytest.raises(EpisodeLost, match="model_error"):
        await play_all(
            ClusterClient(cluster_url),
            assignments("fake/two-steps", 2),
            lambda session: Broken(),
            workers=1,
            told=lambda done, episode: None,
        )
