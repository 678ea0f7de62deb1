"""Task-wise and batch-wise rollouts, and over-provisioning: who waits for whom, and that nothing is thrown away."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dart_lab.modes.group_batches import Batches, trained_and_served
from dart_lab.modes.waiting_schedulers import BatchWise, Mode, TaskWise
from dart_train.rollout.schedule.scheduler import Assignment, Scheduler
from dart_train.rollout.settings.rollout_config import SCHEDULERS, RolloutConfig, TaskEntry

TASKS = [TaskEntry(id=f"fake/t{i}") for i in range(4)]
MODES = list(Mode)

traces = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), max_size=300)


def make(mode: Mode, *, group_size: int = 4, target: int = 2, over: float = 1.0, window: int | None = None, **more):
    if mode is Mode.BATCH:
        batches = Batches(target, over_provision=over, window=window)
        return BatchWise(TASKS, group_size=group_size, batches=batches, **more)
    return (TaskWise if mode is Mode.TASK else Scheduler)(TASKS, group_size=group_size, **more)


def close_complete(scheduler: Scheduler) -> None:
    """What a trainer does: a complete batch is trained on."""
    if isinstance(scheduler, BatchWise) and scheduler.batches.complete:
        scheduler.batches.close()


def fill(scheduler: Scheduler, workers: int, running: dict[int, Assignment]) -> None:
    """Give every free worker what it may play now."""
    for worker in range(workers):
        if worker not in running and (assignment := scheduler.next(worker)) is not None:
            running[worker] = assignment


def drive(scheduler: Scheduler, trace: list[tuple[int, int]], workers: int) -> list[tuple[int, Assignment]]:
    """Workers end in the order of a trace (9: lost); batches close as soon as they are complete."""
    running: dict[int, Assignment] = {}
    dealt = []
    for event, outcome in trace:
        worker = event % workers
        if (ended := running.pop(worker, None)) is not None:
            scheduler.lose(ended) if outcome == 9 else scheduler.complete(ended)
        close_complete(scheduler)
        if (new := scheduler.next(worker)) is not None:
            running[worker] = new
            dealt.append((worker, new))
    return dealt


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
@given(trace=traces, workers=st.integers(1, 8), group_size=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_same_seed_and_trace_give_the_same_answers(mode, trace, workers, group_size, seed):
    first, second = (drive(make(mode, group_size=group_size, seed=seed), trace, workers) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("mode", MODES)
@given(trace=traces, workers=st.integers(1, 8), group_size=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_whatever_happens_the_rest_of_a_budget_can_be_played(mode, trace, workers, group_size):
    scheduler = make(mode, group_size=group_size, budget=40, max_attempts=2)
    running: dict[int, Assignment] = {}
    for event, outcome in [*trace, *((worker, 0) for _ in range(200) for worker in range(workers))]:
        fill(scheduler, workers, running)
        if (ended := running.pop(event % workers, None)) is not None:
            scheduler.lose(ended) if outcome == 9 else scheduler.complete(ended)
        close_complete(scheduler)
    assert scheduler.exhausted and not running
    assert scheduler.completed + scheduler.given_up > 40 - group_size


def test_task_wise_slots_wait_for_the_last_of_their_group():
    scheduler, running = make(Mode.TASK), {}
    fill(scheduler, 8, running)
    assert sorted(Counter(a.group_key for a in running.values()).values()) == [4, 4]
    first = running[0].group_key
    team = [worker for worker, a in running.items() if a.group_key == first]
    for worker in team[:-1]:
        scheduler.complete(running.pop(worker))
        fill(scheduler, 8, running)
        assert worker not in running
    scheduler.complete(running.pop(team[-1]))
    fill(scheduler, 8, running)
    assert set(team) <= set(running) and len({running[worker].group_key for worker in team}) == 1
    assert running[team[0]].group_key != first


def test_task_wise_a_lost_member_goes_to_its_own_team():
    scheduler, running = make(Mode.TASK), {}
    fill(scheduler, 8, running)
    worker = next(iter(running))
    key = running[worker].group_key
    other = next(s for s, a in running.items() if a.group_key == key and s != worker)
    scheduler.complete(running.pop(other))
    lost = running.pop(worker)
    scheduler.lose(lost)
    stranger = next(s for s, a in running.items() if a.group_key != key)
    scheduler.complete(running.pop(stranger))
    assert scheduler.next(stranger) is None
    again = scheduler.next(other)
    assert again and (again.group_key, again.n, again.attempt) == (key, lost.n, 1)


def test_batch_wise_everybody_waits_for_the_last_of_the_batch_and_for_the_trainer():
    scheduler, running = make(Mode.BATCH), {}
    fill(scheduler, 12, running)
    assert len(running) == 8  # two groups of four; four workers have nothing
    for worker in list(running):
        assert not scheduler.batches.complete
        scheduler.complete(running.pop(worker))
        assert scheduler.next(worker) is None
    assert scheduler.batches.complete
    scheduler.batches.close()
    fill(scheduler, 12, running)
    assert len(running) == 8


def test_over_provisioning_stops_counting_at_the_target_and_credits_the_rest_to_the_next_batch():
    scheduler, running = make(Mode.BATCH, group_size=1, target=4, over=1.5), {}
    fill(scheduler, 9, running)
    assert len(running) == 6
    slow = [0, 1]
    for worker in (2, 3, 4, 5):
        scheduler.complete(running.pop(worker))
    assert scheduler.batches.complete
    scheduler.complete(running.pop(slow[0]))  # while the trainer trains
    fill(scheduler, 9, running)
    assert scheduler.batches.carried == 1 and list(running) == [slow[1]]
    scheduler.batches.close()
    fill(scheduler, 9, running)
    assert len(running) == 5  # the slow one, four new: with the one carried they are six again
    for worker in list(running)[1:4]:
        scheduler.complete(running.pop(worker))
    assert scheduler.batches.complete and slow[1] in running  # it is still not waited for


def test_a_batch_waits_for_what_would_be_too_old_for_the_next():
    batches = Batches(1, over_provision=2.0, window=1)
    batches.opened("slow")
    batches.opened("a")
    assert batches.ended("a") == 0
    assert batches.complete
    batches.close()
    batches.opened("b")
    batches.ended("b")
    assert not batches.complete  # "slow" was opened one batch ago: now or never
    assert batches.ended("slow") == 1
    assert batches.complete and batches.carried == 1


@given(
    st.integers(1, 6),
    st.sampled_from([1.0, 1.25, 1.5, 2.0]),
    st.integers(0, 3),
    st.lists(st.integers(0, 30), max_size=400),
)
@settings(max_examples=100, deadline=None)
def test_no_group_is_trained_later_than_the_window_and_every_ended_one_is_counted(target, over, window, order):
    if window == 0:
        over = 1.0
    batches = Batches(target, over_provision=over, window=window)
    open_groups: list[tuple[str, int]] = []
    waiting: list[int] = []  # batches in which the ended groups were opened
    trained = opened = 0
    for choice in order:
        while batches.may_open:
            open_groups.append((str(opened), batches.number))
            batches.opened(str(opened))
            opened += 1
        assert len(open_groups) + len(waiting) <= batches.allowed
        if open_groups:
            key, born = open_groups.pop(choice % len(open_groups))
            assert batches.ended(key) == batches.number - born <= window
            waiting.append(born)
        if batches.complete:
            waiting.sort()  # the data manager leases the oldest first
            assert all(batches.number - born <= window for born in waiting[:target])
            trained += target
            del waiting[:target]
            batches.close()
            assert all(batches.number - born <= window for born in waiting)
    assert opened == trained + len(waiting) + len(open_groups)


def test_a_batch_is_closed_once_only():
    with pytest.raises(ValueError, match="batch 0 is not complete: 0 of 3 groups"):
        Batches(3).close()


@pytest.mark.parametrize(("target", "over", "window"), [(0, 1.0, 1), (1, 0.5, 1), (1, 2.5, 1), (4, 1.5, 0)])
def test_batches_refuse_numbers_that_make_no_sense(target, over, window):
    with pytest.raises(ValueError, match="use"):
        Batches(target, over_provision=over, window=window)


def test_the_modes_of_the_laboratory_are_named_in_a_configuration():
    for name, kind in (("task-wise", TaskWise), ("batch-wise", BatchWise), ("rollout-wise", Scheduler)):
        assert SCHEDULERS.get(RolloutConfig(tasks=("fake/a",), mode=name).mode) is kind
    with pytest.raises(ValidationError, match="unknown rollout mode 'batchwise'; did you mean 'batch-wise'"):
        RolloutConfig(tasks=("fake/a",), mode="batchwise")


@pytest.mark.parametrize(
    ("ready", "leased", "newest", "served", "over"),
    [
        (2, 0, 3, [3, 3], False),  # recorded, not taken yet
        (0, 8, 3, [3, 3], False),  # in training
        (0, 0, 4, [3, 4], False),  # published, one engine is behind
        (0, 0, 4, [], False),  # no engine is up
        (0, 0, 4, [4, 4], True),
        (1, 0, 4, [4, 4], True),  # carried into the next batch
        (0, 0, None, [0], True),  # nothing was ever published
    ],
)
def test_a_batch_is_over_when_it_is_trained_on_and_served(ready, leased, newest, served, over):
    assert trained_and_served(target=2, ready=ready, leased=leased, newest=newest, served=served) is over


@given(trace=traces, workers=st.integers(1, 8), group_size=st.integers(1, 5), at_once=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_only_so_many_groups_are_dealt_out_at_once(trace, workers, group_size, at_once):
    scheduler = make(Mode.ROLLOUT, group_size=group_size, groups_at_once=at_once)
    begun: dict[str, set[int]] = {}
    for _, assignment in drive(scheduler, trace, workers):
        begun.setdefault(assignment.group_key, set()).add(assignment.n)
        assert sum(len(members) < group_size for members in begun.values()) <= at_once
    groups = Counter(key.split("@")[0] for key in begun)
    assert not groups or max(groups.values()) - min(groups[task.id] for task in TASKS) <= 3  # fair over tasks


def test_one_group_at_once_ends_soon_and_several_let_slots_stay_on_their_tasks():
    def members_beside(at_once: int | None) -> int:
        running: dict[int, Assignment] = {}
        fill(make(Mode.ROLLOUT, groups_at_once=at_once), 4, running)
        return max(Counter(assignment.group_key for assignment in running.values()).values())

    assert members_beside(1) == 4 and members_beside(None) == 1
