from __future__ import annotations

import pytest

from dart_agent.episodes.trajectory import Trajectory
from dart_gym.core.outcomes import TerminalState
from dart_train.rollout.play.gauges import PhaseClock, SuccessWindow, Totals


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def episode(actions: int) -> Trajectory:
    return Trajectory("a", 1, terminal=TerminalState.DONE, score=1.0, num_actions=actions, timings={"step": 0.5})


def test_phases_add_up_to_the_time_of_all_workers():
    clock = Clock()
    phases = PhaseClock(2, clock)
    phases.enter(0, "reset")
    clock.now += 3
    phases.enter(0, "step")
    phases.enter(1, "generate")
    clock.now += 4
    seconds = phases.seconds()
    assert (seconds["reset"], seconds["step"], seconds["generate"], seconds["idle"]) == (3, 4, 4, 3)
    assert sum(seconds.values()) == 14
    assert phases.counts() == {"step": 1, "generate": 1}


def test_rates_cover_the_window_only():
    clock = Clock()
    totals = Totals(window_s=10.0, clock=clock)
    totals.add(episode(actions=5))
    for _ in range(30):
        clock.now += 1
        totals.add(episode(actions=2))
        seconds, grown = totals.rates(extra=clock.now)
    assert seconds == pytest.approx(10) and grown["actions"] == 20 and grown["episodes"] == 10
    assert grown["extra"] == pytest.approx(10) and grown["step_s"] == pytest.approx(5.0)
    assert totals.terminals == {"done": 31}


def test_success_is_that_of_the_newest_rollouts():
    window = SuccessWindow(["a", "b"], size=4)
    for reward in (1, 1, 1, 0, 0, 0):
        window.add("a", float(reward))
    assert window.means() == {"a": 0.25, "b": None}
