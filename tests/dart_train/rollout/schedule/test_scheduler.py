from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_train.rollout.schedule.scheduler import Assignment, Scheduler
from dart_train.rollout.settings.rollout_config import TaskEntry

weights = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=4)


def entries(weights: list[float]) -> list[TaskEntry]:
    return [TaskEntry(id=f"fake/t{i}", weight=weight) for i, weight in enumerate(weights)]


def play(
    scheduler: Scheduler, events: list[tuple[int, int]], workers: int
) -> tuple[list[tuple[int, Assignment]], list[Assignment]]:
    """Drive a scheduler by (worker, outcome) events: outcome 0 is a loss, 9 refuses admission, else a completion.

    Returns what was dealt, and what still runs at the end.
    """
    running: dict[int, Assignment] = {}
    dealt = []
    for event, outcome in events:
        worker = event % workers
        assignment = running.pop(worker, None)
        if assignment is not None:
            if outcome == 0:
                scheduler.lose(assignment)
            else:
                scheduler.complete(assignment)
        new = scheduler.next(worker, admitted=outcome != 9)
        if new is not None:
            running[worker] = new
            dealt.append((worker, new))
    return dealt, list(running.values())


events = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), max_size=300)


@given(weights, events, st.integers(1, 8), st.integers(1, 6), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_same_trace_gives_the_same_answers(weights, events, workers, group_size, seed):
    runs = [play(Scheduler(entries(weights), group_size=group_size, seed=seed), events, workers) for _ in range(2)]
    assert runs[0] == runs[1]


@given(weights, events, st.integers(1, 8), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_groups_hold_one_task_and_one_training_seed_and_each_member_once_per_attempt(
    weights, events, workers, group_size
):
    scheduler = Scheduler(entries(weights), group_size=group_size)
    groups = defaultdict(list)
    for _, assignment in play(scheduler, events, workers)[0]:
        groups[assignment.group_key].append(assignment)
    for members in groups.values():
        assert len({(a.task_id, a.seed) for a in members}) == 1
        assert members[0].seed >= FIRST_TRAINING_SEED
        assert max(Counter((a.n, a.attempt) for a in members).values()) == 1
        assert {a.n for a in members} <= set(range(group_size))
        assert len({a.sampling_seed for a in members}) == len(members)
    seeds = {members[0].seed for members in groups.values()}
    assert len(seeds) == len(groups)


@given(weights, events, st.integers(1, 8), st.integers(1, 6), st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_budget_is_never_exceeded_and_everything_opened_ends(weights, events, workers, group_size, budget):
    scheduler = Scheduler(entries(weights), group_size=group_size, budget=budget, max_attempts=3)
    dealt, running = play(scheduler, events, workers)
    assert scheduler.completed <= budget
    open_at_most = {a.group_key for _, a in dealt}
    for assignment in running:
        scheduler.complete(assignment)
    while (assignment := scheduler.next(0, admitted=False)) is not None:
        open_at_most.add(assignment.group_key)
        scheduler.complete(assignment)
    assert scheduler.open_groups == 0 and scheduler.running == 0
    assert scheduler.completed + scheduler.given_up == group_size * len(open_at_most)
    assert scheduler.completed <= budget
    while (assignment := scheduler.next(0)) is not None:
        scheduler.complete(assignment)
    assert scheduler.exhausted
    assert budget - group_size < scheduler.completed + scheduler.given_up


@given(weights, st.lists(st.integers(0, 7), min_size=50, max_size=400), st.integers(1, 8), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_no_task_runs_ahead_of_another_by_more_than_the_slack(weights, order, workers, group_size):
    tasks = entries(weights)
    scheduler = Scheduler(tasks, group_size=group_size, stay_groups=2.0)
    by_id = {entry.id: entry.weight for entry in tasks}
    for i in range(len(order)):
        play_one(scheduler, order[i] % workers)
        served = [count / by_id[task_id] for task_id, count in scheduler.dealt().items()]
        assert max(served) - min(served) <= 2.0 * group_size + 1 / min(weights) + 1e-9


def play_one(scheduler: Scheduler, worker: int) -> Assignment:
    assignment = scheduler.next(worker)
    assert assignment is not None
    scheduler.complete(assignment)
    return assignment


def test_a_slot_stays_on_its_task_for_whole_stretches():
    scheduler = Scheduler(entries([1.0, 1.0, 1.0]), group_size=8, stay_groups=2.0)
    changes, last = 0, [""] * 2
    for i in range(960):
        task = play_one(scheduler, i % 2).task_id
        changes += last[i % 2] != task
        last[i % 2] = task
    assert changes <= 2 + 960 // 8
    assert set(scheduler.dealt().values()) <= set(range(300, 341))


def test_small_groups_do_not_make_a_slot_change_its_task_more_often():
    def changes(group_size: int) -> int:
        scheduler = Scheduler(entries([1.0, 1.0, 1.0]), group_size=8, stay_groups=2.0)
        for task in range(3):
            scheduler.plan(f"fake/t{task}", group_size=group_size, max_steps=None)
        tasks = [play_one(scheduler, 0).task_id for _ in range(960)]
        return sum(one != other for one, other in zip(tasks, tasks[1:], strict=False))

    assert changes(2) <= 1.2 * changes(8)


def test_a_lost_rollout_is_dealt_again_with_the_same_seed_and_given_up_at_last():
    scheduler = Scheduler(entries([1.0]), group_size=2, max_attempts=2)
    first = scheduler.next(0)
    assert first and scheduler.lose(first)
    other = scheduler.next(0)
    assert other and other.n == 1
    again = scheduler.next(1, admitted=False)
    assert again and (again.group_key, again.seed, again.n, again.attempt) == (first.group_key, first.seed, 0, 1)
    assert again.sampling_seed != first.sampling_seed
    assert not scheduler.lose(again)
    scheduler.complete(other)
    assert scheduler.open_groups == 0 and scheduler.given_up == 1


def test_nothing_new_is_opened_without_admission():
    scheduler = Scheduler(entries([1.0, 1.0]), group_size=2)
    assert scheduler.next(0, admitted=False) is None
    first = scheduler.next(0)
    second = scheduler.next(1, admitted=False)
    assert first and second and first.group_key == second.group_key
    assert scheduler.next(2, admitted=False) is None


def test_a_task_that_is_not_admitted_opens_nothing_while_others_do():
    scheduler = Scheduler(entries([1.0, 1.0]), group_size=2, stay_groups=0.0)
    first = scheduler.next(0)
    assert first and first.task_id == "fake/t0"
    for task in ("fake/t0", "fake/t1"):
        scheduler.plan(task, group_size=2, max_steps=None, admitted=task == "fake/t1")
    dealt = [scheduler.next(worker) for worker in range(1, 6)]
    assert Counter(assignment.task_id for assignment in dealt if assignment) == {"fake/t0": 1, "fake/t1": 4}
    scheduler.plan("fake/t1", group_size=2, max_steps=None, admitted=False)
    assert scheduler.next(6) is None and not scheduler.exhausted
    scheduler.plan("fake/t0", group_size=2, max_steps=None)
    again = scheduler.next(6)
    assert again and again.task_id == "fake/t0"


def test_a_new_life_continues_the_count_with_new_seeds_and_keys():
    old = Scheduler(entries([1.0]), group_size=4, life="a")
    new = Scheduler(entries([1.0]), group_size=4, life="b", completed=10, budget=16)
    first, second = old.next(0), new.next(0)
    assert first and second and first.seed != second.seed and first.group_key != second.group_key
    assert not new.exhausted
    new.complete(second)
    while assignment := new.next(0):
        new.complete(assignment)
    assert new.completed == 14 and new.exhausted


def test_step_caps_of_a_task_go_before_the_service_wide_one():
    tasks = [TaskEntry(id="fake/a", max_steps=3), TaskEntry(id="fake/b")]
    scheduler = Scheduler(tasks, group_size=1, max_steps=7, stay_groups=0)
    assert {a.task_id: a.max_steps for a in (scheduler.next(0), scheduler.next(1)) if a} == {"fake/a": 3, "fake/b": 7}


def test_a_planned_size_holds_from_the_next_group_on_and_takes_a_smaller_share():
    scheduler = Scheduler(entries([1.0, 1.0]), group_size=8, max_steps=5)
    before = play_one(scheduler, 0)
    scheduler.plan("fake/t0", group_size=2, max_steps=3)
    assignments = [play_one(scheduler, 0) for _ in range(2000)]
    rest = [a for a in assignments if a.group_key == before.group_key]
    assert {(a.group_size, a.max_steps) for a in (before, *rest)} == {(8, 5)} and len(rest) == 7
    small = [a for a in assignments if a.task_id == "fake/t0" and a.group_key != before.group_key]
    assert {(a.group_size, a.max_steps) for a in small} == {(2, 3)}
    assert max(Counter(a.group_key for a in small).values()) == 2
    other = {(a.group_size, a.max_steps) for a in assignments if a.task_id == "fake/t1"}
    assert other == {(8, 5)}
    assert 0.23 < len(small) / (len(assignments) - len(small)) < 0.27


def test_a_budget_too_small_for_a_full_group_is_spent_on_smaller_ones():
    scheduler = Scheduler(entries([1.0, 1.0]), group_size=4, budget=7)
    scheduler.plan("fake/t1", group_size=1, max_steps=None)
    dealt = []
    while (assignment := scheduler.next(0)) is not None:
        scheduler.complete(assignment)
        dealt.append(assignment.task_id)
    assert Counter(dealt) == {"fake/t0": 4, "fake/t1": 3}
    assert scheduler.exhausted and scheduler.completed == 7


def test_a_group_that_is_over_is_neither_dealt_nor_dealt_again():
    scheduler = Scheduler(entries([1.0]), group_size=4, groups_at_once=1)
    running = [scheduler.next(worker) for worker in range(2)]
    (key,) = scheduler.open_keys
    assert not scheduler.is_over(key)
    assert scheduler.end_groups([key, "unknown"]) == 2 and scheduler.is_over(key)
    assert scheduler.given_up == 2 and scheduler.unfinished == 2
    following = scheduler.next(2)
    assert following is not None and following.group_key != key
    assert not scheduler.lose(running[0])  # broken off: not again
    scheduler.complete(running[1])
    assert scheduler.open_keys == [following.group_key] and scheduler.opened == 2
    assert scheduler.end_groups([key]) == 0
