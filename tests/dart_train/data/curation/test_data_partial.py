"""Groups that lack members: trained on with those that they have after a deadline, and not played on when over."""

from __future__ import annotations

import pytest
from data_builders import SMALL, Clock, make_step, make_trajectory, open_manager, publish, record_group

from dart_train.data.curation.rules import StalenessBy, staleness_version
from dart_train.data.insight import statistics

SLOW = {"group_size": 4, "partial_after_s": 60.0, "partial_members": 3}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def opened(database, tmp_path, clock):
    """A run with some settings."""
    managers = []

    def make(**settings):
        managers.append(open_manager(tmp_path, clock, SMALL.model_copy(update=settings)))
        return managers[-1]

    yield make
    for manager in managers:
        manager.close()


def record(data, group: str, *rewards: float, start: int = 0, **fields) -> None:
    for number, reward in enumerate(rewards, start):
        data.record(make_trajectory(f"{group}-{number}", group, reward, **fields), expected=4)


def test_after_the_deadline_a_group_is_trained_on_with_those_it_has(opened, clock):
    data = opened(**SLOW)
    record(data, "slow", 0.0, 1.0, 1.0)
    record(data, "few", 0.0, 1.0)
    clock.now += 59
    assert data.close_partial() == 0 and data.lease(1, "me") is None
    clock.now += 2
    assert data.close_partial() == 1
    leased = data.lease(2, "me", at_least=1)
    assert [(group.key, group.rewards) for group in leased] == [("slow", (0.0, 1.0, 1.0))]
    assert data.closed_groups(["slow", "few", "unknown"]) == ["slow"]
    record(data, "slow", 0.0, start=3)  # too late: left over
    assert data.census().dropped == {"surplus": 1}


@pytest.mark.parametrize("settled", [False, True])
def test_a_partial_group_without_signal_is_dropped_as_any_other(opened, clock, settled):
    data = opened(**SLOW, drop_above=1.0 if settled else None)
    record(data, "dry", 0.0, 0.0, 0.0)
    clock.now += 61
    assert data.close_partial() == 1
    assert data.census().dropped == {"no_signal": 3} and data.ready() == (0, 0)


def test_without_a_deadline_all_are_waited_for(opened, clock):
    data = opened(group_size=4)
    record(data, "slow", 0.0, 1.0, 1.0)
    clock.now += 1e6
    assert data.close_partial() == 0


def test_an_expired_group_takes_no_more_members(opened):
    data = opened(group_size=4, max_staleness=1)
    record(data, "old", 0.0)
    record(data, "new", 0.0, steps=(make_step(3),))
    assert data.closed_groups(["old", "new"]) == []
    publish(data, 3)
    data.sweep()
    assert data.closed_groups(["old", "new"]) == ["old"]


STEPS = (make_step(3), make_step(9), make_step(5))


def test_each_step_that_staleness_may_count_from():
    trajectory = make_trajectory("t", steps=STEPS)
    assert [staleness_version(trajectory, by) for by in StalenessBy] == [3, 5, 9]
    assert staleness_version(make_trajectory("t", steps=()), StalenessBy.LAST) == 0


@pytest.mark.parametrize(("by", "fresh"), [("oldest", False), ("last", True), ("newest", True)])
def test_one_old_step_does_not_expire_a_group_where_the_last_one_counts(opened, by, fresh):
    """DART labels a trajectory by its last response."""
    data = opened(max_staleness=1, staleness_by=StalenessBy(by))
    record_group(data, "g", steps=(make_step(3), make_step(5)))
    publish(data, 6)
    data.sweep()
    assert data.ready() == ((1, 2) if fresh else (0, 0))
    if fresh:
        leased = data.lease(1, "me")
        (group,) = leased
        assert [group.version(trajectory) for trajectory in group.trajectories] == [5, 5]
        leased.commit(6)
        assert data.read(statistics.staleness_histogram) == {1: 2}


def test_the_success_rate_of_as_many_as_the_latest_group_has(opened):
    """DART's window: the last n_i rollouts of a task."""
    data = opened(group_size=4)
    for group, rewards in (("a", (0.0, 0.0, 0.0, 0.0)), ("b", (1.0, 1.0, 0.0, 1.0))):
        record(data, group, *rewards)
    for number in range(2):  # the next group has two
        data.record(make_trajectory(f"c-{number}", "c", float(number)), expected=2)
    whole = data.read(statistics.task_stats, None)["fake/button"]
    assert (whole.rollouts, whole.window_size, whole.success_rate) == (10, 2, 0.5)
    data.config = data.config.model_copy(update={"success_window": None})
    data.refresh_task_stats()
    assert data.read(statistics.saved_task_stats)["fake/button"] == whole


def test_a_mastered_task_is_not_played_any_more(opened):
    data = opened(retire_above=0.9, retire_after=4)
    limits = {"fake/button": 5, "fake/other": 5}
    record_group(data, "a", (1.0, 1.0))
    data.refresh_task_stats()
    assert data.plans(limits)["fake/button"].admitted  # two rollouts say little
    record_group(data, "b", (1.0, 1.0))
    data.refresh_task_stats()
    assert {task: plan.admitted for task, plan in data.plans(limits).items()} == {
        "fake/button": False, "fake/other": True,
    }  # fmt: skip
    assert data.plans({"fake/button": 5})["fake/button"].admitted  # the last one goes on
