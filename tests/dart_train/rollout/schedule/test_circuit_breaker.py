from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_lab.modes.group_batches import Batches
from dart_lab.modes.waiting_schedulers import BatchWise, TaskWise
from dart_train.rollout.schedule.circuit_breaker import CircuitBreakers
from dart_train.rollout.schedule.scheduler import Scheduler
from dart_train.rollout.settings.rollout_config import TaskEntry


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def breakers(clock: Clock) -> CircuitBreakers:
    return CircuitBreakers("ab", losses=3, first_s=10.0, longest_s=40.0, clock=clock)


def test_a_task_is_left_out_after_losses_in_a_row(clock):
    tasks = breakers(clock)
    assert [tasks.lost("a", "crash") for _ in range(2)] == [False, False]
    assert not tasks.won("a")  # its circuit is closed
    assert [tasks.lost("a", "crash") for _ in range(3)] == [False, False, True]
    assert tasks.held() == {"a"} and tasks.shown() == {"a": "3 losses in a row, crash"} and not tasks.all_held


def test_one_try_at_a_time_decides_and_pauses_double(clock):
    tasks = breakers(clock)
    for _ in range(3):
        tasks.lost("a", "crash")
    for pause in (10, 20, 40, 40):
        clock.now += pause - 0.1
        assert tasks.held() == {"a"}
        clock.now += 0.1
        assert tasks.held() == frozenset()
        tasks.dealt("a")
        assert tasks.held() == {"a"}  # while it is tried
        assert tasks.lost("a", "crash")
    clock.now += 40
    tasks.dealt("a")
    assert tasks.won("a") and tasks.held() == frozenset() and tasks.shown() == {}
    assert not tasks.lost("a", "crash")  # counted anew


def test_what_began_before_and_what_says_nothing_do_not_decide(clock):
    tasks = breakers(clock)
    for _ in range(3):
        tasks.lost("a", "crash")
    assert not tasks.lost("a", "begun before")
    clock.now += 10
    tasks.dealt("a")
    tasks.undecided("a")
    assert tasks.held() == frozenset()  # it may be tried again at once
    assert tasks.won("a")


def test_all_are_held_only_where_none_can_be_played(clock):
    tasks = breakers(clock)
    for task in "ab":
        for _ in range(3):
            tasks.lost(task, "crash")
    assert tasks.all_held
    tasks.won("b")
    assert not tasks.all_held


def scheduler(kind: type[Scheduler] = Scheduler, **settings) -> Scheduler:
    return kind([TaskEntry(id="a"), TaskEntry(id="b")], group_size=4, stay_groups=0.0, **settings)


def test_nothing_of_a_held_task_is_dealt_and_nobody_waits_for_it():
    dealer = scheduler(budget=24)
    first = [dealer.next(worker) for worker in range(3)]
    held = first[0].task_id
    rest = [dealer.next(worker, held={held}) for worker in range(3, 8)]
    assert held not in {assignment.task_id for assignment in rest}
    mine = [a for a in first if a.task_id == held]
    for assignment in mine:
        assert dealer.lose(assignment)
    unfinished = dealer.unfinished
    assert dealer.drop(held) == 4 and dealer.given_up == 4 and dealer.unfinished == unfinished - 4
    for assignment in [*(a for a in first if a.task_id != held), *rest]:
        dealer.complete(assignment)
    while (assignment := dealer.next(0, held={held})) is not None:
        dealer.complete(assignment)
    assert dealer.completed == 24 and dealer.exhausted  # the others spend the budget


def test_a_task_that_comes_back_does_not_catch_up():
    dealer = scheduler()
    for _ in range(40):
        dealer.complete(dealer.next(0, held={"b"}))
    dealer.rejoin("b")
    dealt = [dealer.next(0) for _ in range(16)]
    assert sum(assignment.task_id == "b" for assignment in dealt) in (8, 12)


def test_task_wise_slots_leave_a_group_whose_task_is_held():
    dealer = scheduler(TaskWise)
    first = dealer.next(0)
    assert dealer.next(0, held={first.task_id}) is None  # bound to its group
    dealer.lose(first)
    dealer.drop(first.task_id)
    after = dealer.next(0, held={first.task_id})
    assert after is not None and after.task_id != first.task_id


@given(st.lists(st.sampled_from(["next", "win", "lose", "hold", "free"]), max_size=120))
def test_counts_stay_right_whatever_is_held(events):
    dealer, held, running = scheduler(budget=40), set(), []
    for event in events:
        if event == "next" and (assignment := dealer.next(len(running), held=held)) is not None:
            assert assignment.task_id not in held
            running.append(assignment)
        elif event in ("win", "lose") and running:
            assignment = running.pop(0)
            dealer.complete(assignment) if event == "win" else dealer.lose(assignment)
        elif event == "hold":
            held.add("a")
            dealer.drop("a")
        elif event == "free":
            held.discard("a")
            dealer.rejoin("a")
        assert dealer.running == len(running) <= dealer.unfinished
        assert dealer.completed + dealer.unfinished <= 40


@pytest.mark.parametrize("kind", [Scheduler, TaskWise, BatchWise])
def test_a_task_that_is_tried_keeps_nobody_from_the_groups_of_others(kind):
    """One rollout decides about it and takes as long as it takes; the rest of its group is not dealt meanwhile."""
    batches = {"batches": Batches(8)} if kind is BatchWise else {}
    dealer = scheduler(kind, groups_at_once=1, **batches)
    tried = dealer.next(0)
    others = [dealer.next(worker, held={tried.task_id}) for worker in range(1, 9)]
    assert None not in others and {one.task_id for one in others} == {"ab".replace(tried.task_id, "")}


def test_what_is_held_back_leaves_room_for_others():
    """Of a group with one rollout that is tried, that one counts in the backlog, and the group does not."""
    dealer = scheduler(groups_at_once=None)
    tried = dealer.next(0)
    assert dealer.backlog() == (1, 4) and dealer.backlog({tried.task_id}) == (0, 1)
    other = dealer.next(1, held={tried.task_id})
    assert other.task_id != tried.task_id
    assert dealer.backlog({tried.task_id}) == (1, 5) and dealer.backlog({"unknown"}) == (2, 8)
