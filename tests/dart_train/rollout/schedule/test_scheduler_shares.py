from __future__ import annotations

from collections import Counter

import pytest

from dart_train.rollout.schedule.scheduler import Scheduler
from dart_train.rollout.settings.rollout_config import TaskEntry


def play(scheduler: Scheduler, rollouts: int) -> Counter[str]:
    dealt: Counter[str] = Counter()
    for _ in range(rollouts):
        assignment = scheduler.next(0)
        dealt[assignment.task_id] += 1
        scheduler.complete(assignment)
    return dealt


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_share_is_a_factor_on_the_weight(weight):
    tasks = [TaskEntry(id="fake/a", weight=weight), TaskEntry(id="fake/b")]
    scheduler = Scheduler(tasks, group_size=4, stay_groups=0)
    scheduler.plan("fake/b", group_size=4, max_steps=None, share=0.25)
    dealt = play(scheduler, 4000)
    assert dealt["fake/a"] / dealt["fake/b"] == pytest.approx(4 * weight, rel=0.02)


def test_a_new_share_does_not_rewrite_the_past():
    scheduler = Scheduler([TaskEntry(id="fake/a"), TaskEntry(id="fake/b")], group_size=4, stay_groups=0)
    scheduler.plan("fake/b", group_size=4, max_steps=None, share=0.1)
    play(scheduler, 2200)
    scheduler.plan("fake/b", group_size=4, max_steps=None, share=1.0)
    dealt = play(scheduler, 400)  # a task that waited is not served alone until it has caught up
    assert dealt["fake/a"] == pytest.approx(dealt["fake/b"], abs=8)
