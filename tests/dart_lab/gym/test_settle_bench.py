"""`dart-gym bench settle`, shortened: what counts as too early, and each key on a real desktop at a load of one."""

from __future__ import annotations

import numpy as np
import pytest

from dart_gym.tasks.screen.windows import Geometry
from dart_lab.gym import settle_bench
from dart_lab.gym.settle_bench import Step, summary, within


def test_a_click_is_early_only_if_it_was_reported_as_settled_and_something_came_later():
    steps = [Step(0.1, True), Step(0.2, True, 0.4), Step(2.0, False, 0.1), Step(0.3, True, None, delayed=True)]
    found = summary(steps)
    assert (found["early"], found["early_share"], found["unsettled"], found["delayed"]) == (1, 0.25, 1, 1)
    assert found["late_ms_max"] == pytest.approx(400)


class Shown:
    """A desktop that shows one frame after the other, the last one for ever."""

    def __init__(self, *frames):
        self.frames = list(frames)

    async def screenshot(self):
        return (self.frames.pop(0) if len(self.frames) > 1 else self.frames[0]).copy()


async def test_a_later_change_counts_unless_it_is_small_or_where_a_timer_draws(monkeypatch):
    monkeypatch.setattr(settle_bench, "WATCHED_S", 0.05)
    monkeypatch.setattr(settle_bench, "LOOK_S", 0.005)
    empty, caret, menu, line = (np.zeros((100, 100, 3), np.uint8) for _ in range(4))
    caret[10:30, 5] = menu[:50, :50] = line[90:, :50] = 255
    apart = within(Geometry(0, 0, 100, 100), (0.0, 0.9, 1.0, 1.0))
    assert await settle_bench.differs_after(Shown(empty, caret), empty, None) == (None, False)
    seconds, delayed = await settle_bench.differs_after(Shown(empty, menu, empty), empty, apart)
    assert seconds is not None and not delayed
    assert await settle_bench.differs_after(Shown(line), empty, apart) == (None, True)
    assert (await settle_bench.differs_after(Shown(line), empty, None))[0] is not None


@pytest.mark.desktop
async def test_every_key_is_measured(monkeypatch):
    monkeypatch.setattr(settle_bench, "WATCHED_S", 0.2)
    stages: list[str] = []
    report = await settle_bench.measure(["menu"], 1, 1, stages.append)
    assert stages == ["menu, 1 clicks, 1 busy processes"] and report.aims.keys() <= report.keys.keys()
    assert report.keys["menu_step_ms_p50"] > 30 and report.keys["menu_early_share"] in (0, 1)
