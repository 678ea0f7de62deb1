"""Dynamic groups, selections and leftovers through the manager."""

from __future__ import annotations

import pytest
from data_builders import SMALL, make_step, make_trajectory, open_manager, publish, record_group
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dart_agent.evaluation.difficulty import write_difficulty
from dart_gym.core.outcomes import TerminalState
from dart_train.data import CurationConfig
from dart_train.data.curation.regrouping import Leftover, regroup
from dart_train.rollout.schedule.scheduler import Scheduler
from dart_train.rollout.settings.rollout_config import TaskEntry

TASK = "fake/button"


def config(**fields):
    return CurationConfig(**{**SMALL.model_dump(), **fields})


def test_a_task_whose_number_fell_to_three_is_trained_with_a_group_of_three(tmp_path, clock, database):
    dynamic = config(group_size=8, dynamic_rollouts=True, success_window=10, drop_no_signal=False)
    with open_manager(tmp_path, clock, dynamic) as data:
        for number in range(10):
            data.record(make_trajectory(f"past-{number}", f"past{number}", float(number > 0)), expected=1)
        data.lease(10, "earlier").commit(0)
        data.refresh_task_stats()
        plan = data.plans({TASK: None})[TASK]
        assert plan.group_size == 3  # success 0.9
        scheduler = Scheduler([TaskEntry(id=TASK)], group_size=8)
        scheduler.plan(TASK, group_size=plan.group_size, max_steps=None)
        dealt = [scheduler.next(worker) for worker in range(3)]
        for assignment, reward in zip(dealt, (1.0, 0.0, 1.0), strict=True):
            name = f"new-{assignment.n}"
            data.record(make_trajectory(name, assignment.group_key, reward), expected=assignment.group_size)
        [group] = data.lease(1, "trainer").groups
        assert group.rewards == (1.0, 0.0, 1.0)


def test_a_selection_trains_on_part_of_a_group_and_counts_the_rest(tmp_path, clock, database):
    with open_manager(tmp_path, clock, config(group_size=6, select_rollouts=4)) as data:
        names = record_group(data, "g", (1.0, 0.0, 0.0, 0.0, 0.0, 1.0))
        assert data.ready() == (1, 4)
        [group] = data.lease(1, "trainer").groups
        assert [item.trajectory_id for item in group.trajectories] == [names[0], *names[3:]]
        assert data.census().parts()["unselected"] == 2


def test_groups_that_mostly_succeed_are_dropped_and_counted(tmp_path, clock, database):
    with open_manager(tmp_path, clock, config(group_size=4, drop_above=0.7)) as data:
        record_group(data, "easy", (1.0, 1.0, 1.0, 0.0))
        record_group(data, "hard", (1.0, 0.0, 0.0, 0.0))
        assert [group.key for group in data.lease(1, "trainer").groups] == ["hard"]
        assert data.status().census.dropped == {"too_easy": 4}
        assert "4 in groups that mostly succeed" in data.diagnose()


def test_leftovers_of_a_task_become_a_group_within_the_window(tmp_path, clock, database):
    with open_manager(tmp_path, clock, config(group_size=4, select_rollouts=2, replay_leftovers=True)) as data:
        publish(data, 5)
        record_group(data, "stale", (1.0, 0.0, 0.0, 1.0), version=1)
        first = record_group(data, "g", (1.0, 0.0, 0.0, 1.0), version=5)
        data.sweep()
        data.lease(1, "trainer").commit(5)
        assert data.regroup() == 1
        [group] = data.lease(1, "trainer").groups
        assert [item.trajectory_id for item in group.trajectories] == first[:2]  # the two that were left out
        assert data.regroup() == 0
        assert data.status().decisions["replay_leftovers: grouped"] == 1


def test_members_of_groups_that_never_filled_are_grouped_anew(tmp_path, clock, database):
    with open_manager(tmp_path, clock, config(group_size=2, replay_leftovers=True, leftover_after_s=60.0)) as data:
        for name, reward in (("a", 1.0), ("b", 0.0)):
            data.record(make_trajectory(name, f"lone-{name}", reward))
        assert data.regroup() == 0  # their groups may still fill
        clock.now += 61
        assert data.regroup() == 1
        late = data.record(make_trajectory("late", "lone-a", 0.0))
        assert late == "rejected"
        leased = data.lease(1, "trainer")
        assert {item.trajectory_id for item in leased.groups[0].trajectories} == {"a", "b"}
        leased.commit(0)
        assert data.counts()["trained"] == 2
        assert data.census().parts()["surplus"] == 1


def test_a_cap_grows_when_it_cuts_off_every_attempt(tmp_path, clock, database):
    dynamic = config(group_size=2, dynamic_length=True, length_margin=1, min_length=2, length_growth=2.0)
    with open_manager(tmp_path, clock, dynamic) as data:

        def attempt(name: str, steps: int, terminal: TerminalState, reward: float) -> int | None:
            played = tuple(make_step() for _ in range(steps))
            data.record(make_trajectory(name, name, reward, steps=played, terminal=terminal), expected=1)
            data.refresh_task_stats()
            return data.plans({TASK: 30})[TASK].max_steps

        assert data.plans({TASK: 30})[TASK].max_steps == 30
        assert attempt("success", 3, TerminalState.DONE, 1.0) == 4
        assert attempt("cut", 4, TerminalState.STEP_LIMIT, 0.0) == 4
        assert attempt("again", 4, TerminalState.STEP_LIMIT, 0.0) == 8
        assert attempt("ended", 5, TerminalState.DONE, 0.0) == 4


def test_shares_follow_success_once_three_groups_have_shown_it(tmp_path, clock, database):
    """The members of a group begin from the same screen: one that fails as a whole says little of the task."""
    with open_manager(tmp_path, clock, config(task_sampling="success")) as data:

        def shares() -> dict[str, float]:
            data.refresh_task_stats()
            plans = data.plans({TASK: None, "fake/hard": None, "fake/new": None})
            return {task: plan.share for task, plan in plans.items()}

        for number in range(2):
            record_group(data, f"half-{number}", (1.0, 0.0))
            record_group(data, f"never-{number}", (0.0, 0.0), task_id="fake/hard")
        assert shares() == {TASK: 1.0, "fake/hard": 1.0, "fake/new": 1.0}
        record_group(data, "half", (1.0, 0.0))
        record_group(data, "never", (0.0, 0.0), task_id="fake/hard")
        assert shares() == {TASK: 1.0, "fake/hard": 0.1, "fake/new": 1.0}


def test_a_curriculum_begins_from_known_pass_rates_and_believes_what_it_measures(tmp_path, clock, database):
    """Without them every task that was never tried has its full share; the first groups of its own replace them."""
    path, tasks = str(tmp_path / "rates.json"), {TASK: None, "fake/hard": None, "fake/new": None}
    write_difficulty(path, "first", {TASK: (5, 10), "fake/hard": (1, 10)})
    write_difficulty(path, "second", {TASK: (9, 10), "fake/hard": (1, 10)})

    def shares(**known):
        with open_manager(tmp_path, clock, config(task_sampling="curriculum", **known)) as data:
            return {task: plan.share for task, plan in data.plans(tasks).items()}

    assert shares() == {TASK: 1.0, "fake/hard": 1.0, "fake/new": 1.0}
    assert shares(difficulty=path, difficulty_of="first") == {TASK: 1.0, "fake/hard": 0.1, "fake/new": 1.0}
    assert shares(difficulty=path, difficulty_of="second") == {TASK: 1.0, "fake/hard": 1.0, "fake/new": 1.0}
    with open_manager(
        tmp_path, clock, config(task_sampling="curriculum", difficulty=path, difficulty_of="first")
    ) as data:
        for number in range(3):
            record_group(data, f"hard-{number}", (1.0, 0.0), task_id="fake/hard")
        data.refresh_task_stats()
        assert data.plans(tasks)["fake/hard"].share == 1.0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"difficulty": "no/such.json"}, "difficulty: no/such.json holds no pass rates"),
        ({"difficulty": "drawn"}, "several policies and none is named"),
        ({"difficulty": "drawn", "difficulty_of": "blind randm"}, "did you mean 'blind random'"),
    ],
)
def test_pass_rates_that_cannot_be_read_are_said_before_the_run(fields, says):
    with pytest.raises(ValidationError, match=says):
        config(**fields)


leftover_lists = st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=20).map(
    lambda rewards: [Leftover(index, reward, 0) for index, reward in enumerate(rewards)]
)


@given(leftover_lists, st.integers(0, 8))
def test_leftovers_are_grouped_once_and_never_without_variance(leftovers, size):
    groups = regroup(leftovers, size)
    used = [item.rollout_id for group in groups for item in group]
    assert len(used) == len(set(used))
    for group in groups:
        assert len(group) == size >= 2
        assert len({item.reward for item in group}) > 1
    rest = [item.reward for item in leftovers if item.rollout_id not in used]
    assert size < 2 or len(rest) < size or len(set(rest)) == 1  # nothing usable waits


@pytest.mark.parametrize("size", [0, 1])
def test_a_group_of_one_has_no_advantage(size):
    assert regroup([Leftover(0, 1.0, 0), Leftover(1, 0.0, 0)], size) == []
