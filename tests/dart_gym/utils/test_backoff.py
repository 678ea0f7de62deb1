from __future__ import annotations

import math
import time

import pytest

from dart_gym.utils.backoff import Pauses, backoff
from dart_gym.utils.waits import said


def test_each_pause_is_twice_the_one_before_up_to_the_longest():
    assert [backoff(n, 0.1, 5.0) for n in range(9)] == [0.1, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert [backoff(n, 0.25, 2.0) for n in (1, 2, 3, 4, 5, 1000)] == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]
    assert backoff(10_000, 0.1, 5.0) == 5.0 and math.isfinite(backoff(10_000, 0.5))


async def test_no_pause_goes_beyond_the_deadline():
    pauses = Pauses(time.monotonic() + 60.0, 0.001, 0.002)
    assert [pauses.next() for _ in range(3)] == [0.001, 0.002, 0.002]
    await pauses.wait(OSError("late"))
    with pytest.raises(OSError, match="late"):
        await Pauses(time.monotonic() + 0.5, 1.0, 2.0).wait(OSError("late"))
    assert Pauses(time.monotonic() + 0.5, 1.0, 2.0).next() is None


async def test_listeners_are_told_what_is_true_before_the_deadline():
    told: list[str] = []
    with said(told.append):
        await Pauses(time.monotonic() + 60.0, 0.001, 0.002).wait(OSError("no answer within 60 s"), "no answer yet")
        with pytest.raises(OSError, match="no answer within"):
            await Pauses(time.monotonic(), 1.0, 2.0).wait(OSError("no answer within 60 s"), "no answer yet")
    assert told == ["no answer yet; trying again"]
