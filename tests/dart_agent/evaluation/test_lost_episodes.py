"""Lost episodes: a policy that raises, the reasons in the foot of the table, and the exit status."""

from __future__ import annotations

import contextlib
from collections import Counter

import numpy as np
import pytest

from dart_agent.commands.agent_cli import noted
from dart_agent.episodes.play import decide
from dart_agent.episodes.play_list import play_list
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.evaluation.score_tables import UNREAD, reason_lines
from dart_agent.evaluation.scores import LostEpisodes, refuse_lost, score_task
from dart_agent.policies.policy import Decision
from dart_gym.cluster.wire.error_codes import ErrorCode, exception_for
from dart_gym.core.errors import ClusterError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState
from dart_gym.utils import waits


def total(scored: int, lost: int):
    played = [Trajectory("t", seed, terminal=TerminalState.DONE, score=0.0) for seed in range(scored)]
    played += [Trajectory("t", seed, terminal=TerminalState.MODEL_ERROR, lost_by="engine") for seed in range(lost)]
    return score_task("t", played)


def test_nothing_scored_is_an_error_and_so_is_more_than_the_limit():
    refuse_lost(total(1, 5))
    refuse_lost(total(1, 2), max_lost=2)
    refuse_lost(total(3, 0), max_lost=0)
    for scored, lost, most in ((0, 3, None), (0, 3, 9), (5, 1, 0)):
        with pytest.raises(LostEpisodes, match=str(lost)):
            refuse_lost(total(scored, lost), max_lost=most)


def test_the_most_frequent_reasons_come_first_in_one_line_each():
    assert reason_lines({}) == []
    lines = reason_lines({"a\nb": 1, "answered 401": 7, "c": 2, "d": 1, "e": 1})
    assert len(lines) == 5 and "7 x answered 401" in lines[1] and "a b" in lines[3] and "2" in lines[-1]


def test_why_responses_could_not_be_read_is_said_apart():
    lost, unread = Counter[str](), Counter[str]()
    told = noted(lost, unread, lambda episode: None)
    for terminal, by in (
        (TerminalState.PARSE_ERROR, ""),
        (TerminalState.DONE, ""),
        (TerminalState.MODEL_ERROR, "engine"),
    ):
        told(Trajectory("t", 0, terminal=terminal, lost_by=by, error=f"{terminal} it was"))
    assert (lost, unread) == ({"model_error it was": 1}, {"parse_error it was": 1})
    assert reason_lines(unread, UNREAD) == [UNREAD, "  1 x parse_error it was"]


class Raising:
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def act(self, observation) -> Decision:
        raise self.error


async def test_a_policy_that_raises_loses_its_episode_and_says_where():
    decision = await decide(Raising(KeyError("x")), None, None)  # type: ignore[arg-type]
    assert decision.terminal is TerminalState.MODEL_ERROR
    assert "Raising raised KeyError" in decision.error and "test_lost_episodes.py" in decision.error


async def test_a_lost_cluster_is_no_fault_of_the_policy():
    with pytest.raises(ClusterError):
        await decide(Raising(ClusterError("gone")), None, None)  # type: ignore[arg-type]


class OneSession:
    """Sessions whose one screen is always the same."""

    @contextlib.asynccontextmanager
    async def session(self):
        yield self

    async def reset(self, task, **fields) -> StepResult:
        return StepResult(Observation(np.zeros((4, 4, 3), np.uint8), "Do it"))

    async def finish(self, terminal) -> StepResult:
        evaluation = Evaluation(EvaluationStatus.ENVIRONMENT_ERROR, None, "test/1")
        return StepResult(Observation(np.zeros((4, 4, 3), np.uint8), "Do it"), terminal, evaluation)


async def test_an_episode_that_is_played_again_is_said():
    """Three attempts of some seconds each are no silence, where nobody sees the bar."""
    policy = Raising(KeyError("x"))
    policy.reset = lambda episode: None  # type: ignore[attr-defined]
    said: list[str] = []
    with waits.said(said.append):
        [outcome] = await play_list(OneSession(), lambda session: policy, [("t", 0)])
    assert outcome.attempts == 3 and len(said) == 1
    assert "an episode of t was lost by the engine (Raising raised KeyError" in said[0] and "trying again" in said[0]


class Failing(OneSession):
    """Sessions whose tasks cannot be set up, each time with the same answer of the cluster."""

    def __init__(self, code: ErrorCode) -> None:
        self.code, self.opened = code, 0

    @contextlib.asynccontextmanager
    async def session(self):
        self.opened += 1
        yield self

    async def reset(self, task, **fields) -> StepResult:
        raise exception_for(self.code, "KeyError: 'x'")


@pytest.mark.parametrize(("code", "by", "sessions"), [("internal", "environment", 1), ("busy", "cluster", 3)])
async def test_a_defect_in_a_tasks_code_is_the_environments_and_the_session_goes_on(code, by, sessions):
    cluster = Failing(ErrorCode(code))
    [outcome] = await play_list(cluster, lambda session: Raising(KeyError("x")), [("t", 0)])
    assert (outcome.lost_by, outcome.attempts, cluster.opened) == (by, 3, sessions)
    assert outcome.score is None and "KeyError: 'x'" in outcome.detail


async def test_a_cluster_that_is_gone_ends_the_list():
    with pytest.raises(ClusterError):
        await play_list(Failing(ErrorCode.UNREACHABLE), lambda session: Raising(KeyError("x")), [("t", 0)])
