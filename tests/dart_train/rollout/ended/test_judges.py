"""Judges beside the play: what they say is recorded beside the score, trained on by its weight, never in its place."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
from collections import Counter
from dataclasses import replace

import pytest
from forked_play import OK_CLICK, Says
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from service_parts import config_of

from dart_agent.engines.remote.engine_server import EngineServer
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.judging.judge import Judgement, judge_digest, make_judge
from dart_gym.core.outcomes import TerminalState
from dart_train.config.run_config import RunConfig
from dart_train.core.data_states import Reason
from dart_train.core.judge_counts import SUSPICIOUS
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.insight import statistics
from dart_train.data.manager.data_manager import DataManager
from dart_train.report.gather import judge_notes
from dart_train.rollout.ended.judging import Judging, rewarded
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.service.rollout_service import RolloutService
from dart_train.rollout.settings.reward_config import RewardConfig, judge_warnings
from dart_train.trainer.losses.advantages import rewards_to_go

BESIDE = OK_CLICK.replace("42,56", "1,1")
HERE = __name__


class Parts:
    """Judges each episode by its seed's turn: every second one is half right."""

    def __init__(self) -> None:
        self._turn = itertools.count()
        self.screens: list[int] = []

    async def start(self) -> None:
        """Nothing."""

    async def judge(self, episode, screens) -> Judgement:
        assert all(screen.shape[2] == 3 for screen in screens)
        self.screens.append(len(screens))
        value = 0.5 * (next(self._turn) % 2)
        return Judgement(value, tuple(float(place == 0) * value for place in range(len(episode.steps))))

    async def close(self) -> None:
        """Nothing."""


class Says1:
    """Answers as it is told to."""

    def __init__(self, *, does: str = "yes") -> None:
        self._does = does

    async def start(self) -> None:
        """Nothing."""

    async def judge(self, episode, screens) -> Judgement:
        match self._does:
            case "hang":
                await asyncio.Event().wait()
            case "raise":
                raise RuntimeError("broken")
            case "nonsense":
                return Judgement(math.nan, said="purple")
        return Judgement(1.0)

    async def close(self) -> None:
        """Nothing."""


def episode(score: float = 0.0, steps: int = 3) -> Trajectory:
    step = Step(response_ids=(1,), logprobs=(-1.0,), finish_reason="stop")
    return Trajectory("t", 0, trajectory_id="e", terminal=TerminalState.DONE, score=score, steps=(step,) * steps)


def test_the_rewards_of_training_are_the_score_and_what_judges_say_by_their_weights():
    settings = {
        "model": RewardConfig(kind=f"{HERE}:Parts", weight=0.5),
        "steps": RewardConfig(kind=f"{HERE}:Parts", weight=2.0, per="step"),
        "silent": RewardConfig(kind=f"{HERE}:Parts", weight=9.0),
    }
    said = {"model": Judgement(0.25), "steps": Judgement(1.0, (0.0, 0.5, 1.0)), "silent": Judgement()}
    found = rewarded(episode(1.0), said, settings)
    assert (found.score, found.rewards, found.reward) == (1.0, {"model": 0.25}, 1.125)
    assert [step.reward for step in found.steps] == [0.0, 1.0, 2.0]
    assert [step.rewards for step in found.steps] == [{"steps": 0.0}, {"steps": 0.5}, {"steps": 1.0}]
    assert (found.training_reward, found.whole_reward) == (1.125, 4.125)
    nothing = rewarded(episode(1.0), {"model": Judgement()}, settings)
    assert nothing.reward is None and nothing.training_reward == 1.0 and not nothing.judged


@given(st.lists(st.lists(st.floats(-2, 2), max_size=5), max_size=4))
def test_rewards_of_steps_are_summed_to_the_end_around_the_groups_mean(rewards):
    flat = [value for own in rewards for value in own]
    mean = sum(flat) / len(flat) if flat and min(flat) != max(flat) else None
    for own, found in zip(rewards, rewards_to_go(rewards), strict=True):
        expected = [
            sum(later - mean for later in own[place:]) if mean is not None else 0.0 for place in range(len(own))
        ]
        assert found.tolist() == pytest.approx(expected, abs=1e-9)


async def judged_service(data, sockets, cluster_url, make_policy, judges, budget: int = 8) -> RolloutService:
    async with EngineServer(Says(itertools.repeat(BESIDE))).listening(f"ws+unix://{sockets / 'says.sock'}") as url:
        config = config_of(url, tasks=("fake/two-steps",), group_size=2, budget_rollouts=budget, workers=1)
        service = RolloutService(
            config, data, url=cluster_url, weights=Weights("", 0), make_policy=make_policy, judges=judges
        )
        await service.run()
    return service


@pytest.fixture
def flat_data(tmp_path):
    config = CurationConfig(group_size=2, batches_ahead=None, max_staleness=None)
    with DataManager.open(f"sqlite:///{tmp_path}/dart.sqlite", tmp_path / "data", "run", config=config) as manager:
        yield manager


@pytest.mark.parametrize("per", ["episode", "step"])
async def test_a_judge_tells_failures_apart_and_their_scores_stay(sockets, flat_data, cluster_url, make_policy, per):
    settings = RewardConfig(kind=f"{HERE}:Parts", per=per)
    judge = make_judge(settings.kind, {})
    service = await judged_service(flat_data, sockets, cluster_url, make_policy, {"parts": (settings, judge)})
    played = list(flat_data.trajectories(source="rollout"))
    assert len(played) == 8 and all(one.score == 0.0 for one in played)
    assert Counter(one.whole_reward for one in played) == {0.0: 4, 0.5: 4}
    assert flat_data.ready()[0] == 4 and flat_data.census().dropped == {}  # a signal, by the judge's values
    assert flat_data.read(statistics.task_stats, 32)["fake/two-steps"].success_rate == 0.0  # what a report says
    assert service.figures()["judges"] == {"parts": {"judged": 8}}
    assert set(judge.screens) == {len(played[0].steps) + 1}  # the last one as well
    leased = flat_data.lease(4, "trainer")
    assert all(set(group.rewards) == ({0.0, 0.5} if per == "episode" else {0.0}) for group in leased)
    leased.release()


async def test_without_judges_nothing_is_added(sockets, flat_data, cluster_url, make_policy):
    service = await judged_service(flat_data, sockets, cluster_url, make_policy, {})
    assert "judges" not in service.figures() and flat_data.census().dropped == {Reason.NO_SIGNAL: 8}
    assert all(not one.judged and one.rewards == {} for one in flat_data.trajectories())


async def test_nonsense_silence_and_a_constant_yes_are_seen(caplog):
    recorded: list[Trajectory] = []
    judges = {
        name: (RewardConfig(kind=f"{HERE}:Says1", options={"does": name}, timeout_s=0.05), Says1(does=name))
        for name in ("yes", "nonsense", "raise", "hang")
    }
    judging = Judging(judges, lambda one, expected: recorded.append(one))
    with caplog.at_level(logging.WARNING):
        for _ in range(SUSPICIOUS + 3):
            judging.hand_in(episode(), 2)
        await judging.settle(20.0)
    assert len(recorded) == SUSPICIOUS + 3 and all(one.rewards == {"yes": 1.0} for one in recorded)
    counts = judging.figures()["judges"]
    assert counts["yes"] == {"judged": 35, "yes": 35, "wrong": 35} and counts["nonsense"] == {"nonsense": 35}
    assert counts["raise"] == counts["hang"] == {"silent": 35}
    assert "the judge nonsense answered what is no judgement: 'purple'" in caplog.text
    assert caplog.text.count("the judge yes: it has called all") == 1 and "it tells nothing" in caplog.text
    for name in ("nonsense", "raise", "hang"):
        assert caplog.text.count(f"the judge {name}: it gives no judgement of 100% of the episodes") == 1
    assert caplog.text.count("the judge raise did not judge an episode") == 1


async def test_what_does_not_count_is_not_judged():
    recorded: list[Trajectory] = []
    judging = Judging(
        {"yes": (RewardConfig(kind=f"{HERE}:Says1"), Says1())}, lambda one, expected: recorded.append(one)
    )
    judging.hand_in(replace(episode(), score=None), 2)
    assert len(recorded) == 1 and recorded[0].rewards == {}


def test_an_uncalibrated_judge_is_warned_of(tmp_path):
    def config(**reward) -> RunConfig:
        mine = {"mine": {"kind": f"{HERE}:Says1", **reward}}
        values = {"name": "r", "rollout": {"tasks": ["fake/two-steps"]}, "rewards": mine}
        return RunConfig.model_validate(values)

    def warned(**reward) -> list[str]:
        return judge_warnings(config(**reward).rewards)

    assert "nobody knows how far it agrees with evaluators" in warned()[0] and warned(weight=0) == []
    place = tmp_path / "judge.json"
    assert "cannot be read" in warned(calibration=str(place))[0]
    place.write_text(json.dumps({"digest": "0" * 16, "faults": []}))
    assert "is of another judge" in warned(calibration=str(place))[0]
    digest = judge_digest(f"{HERE}:Says1", {})
    place.write_text(json.dumps({"digest": digest, "faults": ["it calls every episode a success: it tells nothing"]}))
    assert warned(calibration=str(place)) == [
        "rewards.mine: this judge is trained with, and it calls every episode a success: it tells nothing"
    ]
    place.write_text(json.dumps({"digest": digest, "faults": []}))
    assert warned(calibration=str(place)) == []
    notes = judge_notes(config(calibration=str(tmp_path / "none.json")))
    assert "Judges took part in the reward of training: mine" in notes[0] and "cannot be read" in notes[1]
    assert judge_notes(config(weight=0)) == []
    rows = [{"actions": 9, "judges": {"watcher": {"judged": 40, "yes": 40, "wrong": 33}}}]
    rows.append({"actions": 3, "judges": {"watcher": {"judged": 5, "yes": 4, "nonsense": 2, "silent": 1}}})
    assert judge_notes(config(weight=0), rows) == [
        "Judge watcher: 45 episodes judged, 44 of them as a success; 2 answers were no judgement; 1 episodes got no "
        "answer."
    ]
    assert judge_notes(config(weight=0), rows[:1])[0].endswith(
        "33 of which the evaluators call a failure: it tells nothing."
    )
    with pytest.raises(ValidationError, match="unknown reward 'modle'"):
        RunConfig.model_validate(
            {"name": "r", "rollout": {"tasks": ["fake/two-steps"]}, "rewards": {"mine": {"kind": "modle"}}}
        )
