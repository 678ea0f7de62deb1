import os
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.desktops.base.desktop import SettlePolicy
from dart_gym.desktops.base.settling import differs
from dart_gym.desktops.base.settling_rules import FIRST_PERIOD_MS, LONGEST_PERIOD_MS, Settling
from dart_gym.desktops.base.work import Work
from dart_gym.desktops.confinement.running_processes import ProcessorDemand


def watch(policy: SettlePolicy, changes: list[float], cost_ms: float = 0.0) -> tuple[bool, float]:
    """Run the state machine on a clock of its own, against a screen that changes at given times."""
    state, now, looked = Settling(policy), 0.0, -1.0
    while True:
        verdict = state.observe(now, any(looked < change <= now for change in changes))
        if verdict is not None:
            return verdict, now
        looked = now
        now += max(state.next_look_ms(now, cost_ms), 1e-3)


def test_a_still_screen_settles_after_the_quiet_time():
    assert watch(SettlePolicy(quiet_ms=60, max_ms=2000), []) == (True, pytest.approx(60, abs=0.1))


def test_a_change_starts_the_quiet_time_again():
    stable, at = watch(SettlePolicy(quiet_ms=60, max_ms=2000), [50.0])
    assert stable and 110 <= at <= 110 + LONGEST_PERIOD_MS + 1


def test_an_animation_is_given_up_at_the_cap():
    assert watch(SettlePolicy(quiet_ms=60, max_ms=500), [float(t) for t in range(1000)]) == (
        False,
        pytest.approx(500, abs=0.1),
    )


def test_the_minimum_is_kept_on_a_still_screen():
    assert watch(SettlePolicy(quiet_ms=10, min_ms=200, max_ms=500), []) == (True, pytest.approx(200, abs=0.1))


def test_no_quiet_time_means_no_wait():
    assert watch(SettlePolicy(quiet_ms=0), []) == (True, 0.0)


def test_looks_become_rarer_while_nothing_changes_and_frequent_after_a_change():
    state = Settling(SettlePolicy(quiet_ms=10_000, max_ms=20_000))
    for now in range(0, 400, 10):
        state.observe(float(now), False)
    assert state.period_ms == LONGEST_PERIOD_MS
    state.observe(400.0, True)
    assert state.period_ms == FIRST_PERIOD_MS


def test_costly_looks_are_rarer():
    state = Settling(SettlePolicy(quiet_ms=1000))
    assert state.next_look_ms(0.0, cost_ms=4.0) == pytest.approx(20.0)


@given(
    quiet=st.floats(1, 200),
    minimum=st.floats(0, 300),
    cap=st.floats(1, 600),
    changes=st.lists(st.floats(0.001, 700), max_size=20),
    cost=st.floats(0, 5),
)
def test_verdicts_are_right_for_any_screen(quiet, minimum, cap, changes, cost):
    stable, at = watch(SettlePolicy(quiet_ms=quiet, max_ms=cap, min_ms=minimum), changes, cost)
    assert at <= max(cap, minimum) + 1 or not stable
    if stable:
        assert at >= minimum
        last_looked_at_change = [change for change in changes if change <= at]
        assert at - max(last_looked_at_change, default=0.0) >= quiet - 25 - 1e-6  # a look may come a period late
    else:
        assert at >= cap


def test_differs_brings_the_previous_frame_up_to_date():
    screen = np.zeros((4, 4), np.uint32)
    previous = screen.copy()
    assert not differs(screen, previous)
    screen[1, 2] = 7
    assert differs(screen, previous)
    assert not differs(screen, previous)


def test_no_rest_counts_before_the_program_has_answered_and_a_shorter_one_is_enough_then():
    state = Settling(SettlePolicy(quiet_ms=60, max_ms=2000, reply_quiet_ms=40), asked=True)
    assert state.observe(0.0, False) is None and state.observe(500.0, False) is None  # a busy program
    state.answer(510.0, handled=True)
    assert state.observe(530.0, False) is None
    assert state.observe(550.0, False) is True


def test_a_program_that_cannot_answer_is_judged_by_the_screen_alone():
    state = Settling(SettlePolicy(quiet_ms=60, reply_quiet_ms=40), asked=True)
    state.answer(0.0, handled=False)
    assert state.observe(50.0, False) is None and state.observe(60.0, False) is True


def test_a_program_that_never_answers_is_given_up_at_the_cap():
    state = Settling(SettlePolicy(quiet_ms=60, max_ms=500, reply_quiet_ms=40), asked=True)
    assert state.observe(499.0, False) is None and state.next_look_ms(499.0) <= 1.0
    assert state.observe(500.0, False) is False


def watch_work(
    work: Work, policy: SettlePolicy, clock: list[float], changes: tuple[float, ...] = ()
) -> tuple[bool, float]:
    """Run the state machine against a screen; `clock[0]` is the time in ms that the work's processes see."""
    state, clock[0], looked = Settling(policy), 0.0, -1.0
    work.begin()
    while True:
        changed = any(looked < change <= clock[0] for change in changes)
        if (verdict := work.judge(state.observe(clock[0], changed), clock[0], state)) is not None:
            return verdict, clock[0]
        looked = clock[0]
        clock[0] += max(state.next_look_ms(clock[0]), 1e-3)


def resting(pids):
    """Demands of processes that do not run."""
    return dict.fromkeys(pids, 0.0)


def demands_of(busy_ms):
    """The demand of the process "old", which has used `busy_ms()` ms until now; the others rest."""
    return lambda pids: {pid: 1e-3 * busy_ms() if pid == "old" else 0.0 for pid in pids}


BUSY = SettlePolicy(quiet_ms=34, max_ms=2000, busy_ms=4000)


def test_a_new_process_is_waited_for_while_it_runs_and_then_known():
    clock = [0.0]
    work = Work(lambda: {"old": False, "new": clock[0] < 1500}, resting, lambda pid: False, {"old"})
    stable, at = watch_work(work, BUSY, clock)
    assert stable and 1500 <= at < 1500 + 2 * 150 + 20
    assert watch_work(work, BUSY, clock)[1] >= 1500, "it is known now, and works"


def test_a_new_process_that_rests_costs_one_longer_rest_and_a_step_without_one_a_single_reading():
    clock, readings = [0.0], []
    work = Work(lambda: readings.append(clock[0]) or {"old": False}, resting, lambda pid: False, {"old"})
    assert watch_work(work, BUSY, clock) == (True, pytest.approx(34, abs=0.1)) and len(readings) == 1
    work = Work(lambda: {"old": False, "new": False}, resting, lambda pid: False, {"old"})
    assert watch_work(work, BUSY, clock) == (True, pytest.approx(34 + 150, abs=0.1))


def test_a_program_that_never_rests_holds_three_waits_at_most_each_to_its_cap():
    clock = [0.0]
    work = Work(lambda: {"spinner": True}, resting, lambda pid: False, set())
    results = [watch_work(work, BUSY, clock) for _ in range(5)]
    assert [stable for stable, _ in results] == [False, False, False, True, True]
    assert [at for _, at in results[:3]] == [pytest.approx(4000, abs=0.1)] * 3 and results[4][1] < 40


def test_a_known_process_that_computes_is_waited_for_and_its_screen_must_rest_once_more():
    clock = [0.0]
    work = Work(lambda: {"old": False}, demands_of(lambda: min(clock[0], 300.0)), lambda pid: False, {"old"})
    stable, at = watch_work(work, BUSY, clock, changes=(310.0,))
    assert stable and 344 <= at < 344 + 2 * 34


def test_a_process_that_only_ticks_or_finished_a_frame_costs_nothing():
    clock = [0.0]
    work = Work(lambda: {"old": False}, demands_of(lambda: 0.05 * clock[0]), lambda pid: False, {"old"})
    assert watch_work(work, BUSY, clock) == (True, pytest.approx(34, abs=0.1))
    work = Work(lambda: {"old": False}, demands_of(lambda: min(clock[0], 5.0)), lambda pid: False, {"old"})
    assert watch_work(work, BUSY, clock) == (True, pytest.approx(34, abs=0.1))


def test_a_process_that_wants_a_processor_at_this_moment_works():
    clock = [0.0]
    work = Work(lambda: {"old": clock[0] < 200}, resting, lambda pid: False, {"old"})
    stable, at = watch_work(work, BUSY, clock)
    assert stable and 200 <= at < 200 + 34 + 1


def test_a_thread_that_wants_a_processor_counts_where_its_process_has_run_in_this_wait():
    clock = [0.0]
    work = Work(lambda: {"old": False}, demands_of(lambda: 0.01 * clock[0]), lambda pid: clock[0] < 200, {"old"})
    assert watch_work(work, BUSY, clock)[1] >= 200
    work = Work(lambda: {"old": False}, resting, lambda pid: True, {"old"})
    assert watch_work(work, BUSY, clock) == (True, pytest.approx(34, abs=0.1)), "it was not even looked at"


def test_a_known_process_that_never_rests_holds_three_waits_to_the_cap_until_it_was_seen_at_rest():
    clock, busy = [0.0], [True]
    work = Work(lambda: {"old": busy[0]}, resting, lambda pid: False, {"old"})
    results = [watch_work(work, BUSY, clock) for _ in range(5)]
    assert [stable for stable, _ in results] == [False, False, False, True, True]
    assert [at for _, at in results[:3]] == [pytest.approx(2000, abs=0.1)] * 3 and results[4][1] < 40
    busy[0] = False
    assert watch_work(work, BUSY, clock)[0]
    busy[0] = True
    assert watch_work(work, BUSY, clock) == (False, pytest.approx(2000, abs=0.1))


def test_a_screen_that_never_stands_still_makes_no_process_restless():
    clock, busy = [0.0], [True]
    work = Work(lambda: {"old": busy[0]}, resting, lambda pid: False, {"old"})
    for _ in range(4):
        assert watch_work(work, BUSY, clock, changes=tuple(float(at) for at in range(2001)))[0] is False
    assert watch_work(work, BUSY, clock) == (False, pytest.approx(2000, abs=0.1)), "it still holds a wait"


def test_the_demand_of_a_process_is_its_time_on_a_processor_and_an_ended_one_has_none():
    demand = ProcessorDemand()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinner:
        pid, sleeper = str(spinner.pid), str(os.getppid())
        first = demand([pid, sleeper])
        while (now := demand([pid, sleeper]))[pid] < first[pid] + 0.05:
            time.sleep(0.005)
        spinner.kill()
    assert now.keys() == {pid, sleeper}
    assert demand([pid]) == {}
