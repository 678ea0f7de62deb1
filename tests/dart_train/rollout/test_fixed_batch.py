from __future__ import annotations

from collections import Counter

import pytest

from dart_agent.episodes import play_list as play_list_module
from dart_agent.episodes.play import play
from dart_agent.episodes.play_list import EpisodeKey, play_list
from dart_agent.evaluation.evaluation_directory import EvaluationDirectory, Plan, read_outcomes
from dart_agent.policies.oracle_policy import OraclePolicy
from dart_agent.policies.policy import Decision, Episode
from dart_agent.policies.random_policy import RandomPolicy
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.wire.error_codes import ErrorCode
from dart_gym.core.errors import (
    ClusterError,
    DesktopError,
    EvaluationFailure,
    MissingDependencyError,
    TaskError,
    UnknownTaskError,
)
from dart_gym.core.outcomes import Observation, TerminalState
from dart_train.processes.evaluate_version import EpisodeLost, check_counted


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


async def test_what_one_task_does_ends_no_list(cluster_url, monkeypatch, tmp_path, caplog):
    """A set-up that fails, a program that is not there, a session that is lost: each costs one episode its attempts."""
    faults = {
        1: TaskError("the set-up failed"),
        2: MissingDependencyError("the server's machine lacks gimp"),
        3: DesktopError("the desktop died"),
        4: ClusterError("the session is gone", ErrorCode.SESSION_LOST),
        5: EvaluationFailure("the evaluator broke"),
    }
    calls: Counter[int] = Counter()

    async def faulty(policy, session, task, *, seed, **options):
        calls[seed] += 1
        if seed in faults:
            raise faults[seed]
        return await play(policy, session, task, seed=seed, **options)

    monkeypatch.setattr(play_list_module, "play", faulty)
    monkeypatch.setattr(play_list_module, "FIRST_PAUSE_S", 0.0)
    plan = keys("fake/two-steps", 7)
    seeds = tuple(seed for _, seed in plan)
    whole = Plan(policy="p", tasks=("fake/two-steps",), seeds=seeds, max_steps=None, settings={})
    with EvaluationDirectory(tmp_path / "e", whole) as directory:
        played = await play_list(
            ClusterClient(cluster_url), lambda session: OraclePolicy(session.oracle), plan, attempts=2, concurrency=2,
            store=directory,
        )  # fmt: skip
        assert len(directory.known()) == 7 - len(faults)
    by = {one.seed: one.lost_by for one in played}
    expected = dict.fromkeys(seeds, "") | {1: "environment", 2: "environment", 3: "environment"}
    assert by == expected | {4: "cluster", 5: "evaluation"}
    assert all(calls[seed] == 2 for seed in faults) and all(one.score == 1.0 for one in played if not one.lost_by)
    lost = {one.seed: one.detail for one in read_outcomes(tmp_path / "e") if one.lost_by}
    assert lost.keys() == faults.keys() and "gimp" in lost[2]
    check_counted(played)
    assert "5 of 7 episodes were lost" in caplog.text


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
