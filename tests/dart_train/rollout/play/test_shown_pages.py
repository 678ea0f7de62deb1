"""Pages that a whole group failed on are played by the oracle, at most so many of a task, and counted."""

from __future__ import annotations

import pytest
from forked_play import service_plays

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.formats import get_format
from dart_agent.policies.random_policy import RandomPolicy
from dart_gym.core.outcomes import TerminalState
from dart_train.core.data_states import SHOWN_MARK
from dart_train.data.insight import statistics
from dart_train.report.gather import shown_notes
from dart_train.rollout.play.oracle_demonstrations import DemonstratingPolicy
from dart_train.rollout.play.shown_pages import ShownPages
from dart_train.rollout.schedule.scheduler import Assignment, Scheduler
from dart_train.rollout.settings.rollout_config import TaskEntry

TASK = "fake/two-steps"


def no_oracle(session):
    raise AssertionError("nothing is played here")


def played(assignment: Assignment, score: float | None) -> Trajectory:
    terminal = TerminalState.DONE if score is not None else TerminalState.ENV_ERROR
    return Trajectory(assignment.task_id, assignment.seed, terminal=terminal, score=score, steps=(Step(),))


def plays_group(scheduler: Scheduler, pages: ShownPages, scores: list[float]) -> Assignment | None:
    """Play one group; the page that its last member asks for."""
    asked = None
    for score in scores:
        assignment = scheduler.next(0)
        scheduler.complete(assignment)
        assert asked is None, "a group is judged when it is complete"
        asked = pages.ended(assignment, played(assignment, score))
    return asked


def test_a_group_without_any_reward_asks_for_its_page_at_most_so_often():
    scheduler = Scheduler([TaskEntry(id="a")], group_size=3)
    pages = ShownPages(scheduler, 2, no_oracle, {})
    assert plays_group(scheduler, pages, [0.0, 1.0, 0.0]) is None
    assert plays_group(scheduler, pages, [0.0, 0.5, 0.0]) is None
    first, second, third = (plays_group(scheduler, pages, [0.0] * 3) for _ in range(3))
    assert first is not None and second is not None and third is None
    assert first.task_id == "a" and first.seed != second.seed
    assert first.group_key.endswith(SHOWN_MARK) and first.max_steps is None


def test_pages_of_an_earlier_life_count_and_none_is_the_default():
    scheduler = Scheduler([TaskEntry(id="a")], group_size=1)
    failed = [0.0]
    assert plays_group(scheduler, ShownPages(scheduler, 2, no_oracle, {"a": 2}), failed) is None
    assert plays_group(scheduler, ShownPages(scheduler, 2, no_oracle, {"a": 1}), failed) is not None
    assert plays_group(scheduler, ShownPages(scheduler, 0, no_oracle, {}), failed) is None
    assert plays_group(scheduler, ShownPages(scheduler, 2, None, {}), failed) is None


def test_a_group_with_a_lost_member_asks_for_nothing():
    scheduler = Scheduler([TaskEntry(id="a")], group_size=2, max_attempts=1)
    pages = ShownPages(scheduler, 5, no_oracle, {})
    first, second = scheduler.next(0), scheduler.next(1)
    scheduler.lose(first)
    assert pages.ended(first, played(first, None)) is None
    scheduler.complete(second)
    assert pages.ended(second, played(second, 0.0)) is None


@pytest.fixture
def make_oracle(tokens, vision, short):
    def make(session):
        return DemonstratingPolicy(
            session, tokens=tokens, vision=vision, action_format=get_format("ui_tars"), conversation=short
        )

    return make


async def test_the_oracle_plays_the_pages_of_failed_groups_and_they_are_demonstrations(
    data, sockets, make_policy, make_oracle
):
    service = await service_plays(TASK, data, sockets, make_policy, 12, shown_pages=3, make_oracle=make_oracle)
    shown, rollouts = list(data.trajectories(source="oracle")), list(data.trajectories(source="rollout"))
    assert len(rollouts) == 12 and not any(one.score for one in rollouts)
    assert len(shown) == 3 and all(one.success and one.group_key.endswith(SHOWN_MARK) for one in shown)
    assert {one.seed for one in shown} <= {one.seed for one in rollouts}
    first = {one.seed: one.steps[0].image_hashes for one in rollouts}
    assert all(one.steps[0].image_hashes == first[one.seed] for one in shown)
    assert [one.trajectory_id for one in data.read(statistics.shown_episodes)] == [one.trajectory_id for one in shown]
    assert data.read(statistics.shown_counts) == {TASK: 3}
    (said,) = shown_notes(data.read(statistics.shown_counts))
    assert f"3 pages on which a whole group had failed: {TASK} (3)" in said and shown_notes({}) == []
    actions = sum(one.num_actions for one in (*shown, *rollouts))
    assert data.read(statistics.actions_played) == service.summary().actions == actions


async def test_an_oracle_that_fails_shows_nothing_and_the_run_goes_on(data, sockets, make_policy, caplog):
    def lost(session):
        return RandomPolicy()

    service = await service_plays(TASK, data, sockets, make_policy, 4, shown_pages=1, make_oracle=lost)
    assert service.scheduler.completed == 4 and data.read(statistics.shown_counts) == {}
    assert f"{TASK} seed" in caplog.text and "is not shown" in caplog.text
