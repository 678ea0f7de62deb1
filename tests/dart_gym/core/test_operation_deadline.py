"""Deadlines of operations: who decides at them, and how far they are moved."""

import asyncio
import math
import time

import pytest

from dart_gym.core import operation_deadline
from dart_gym.core.operation_deadline import OperationDeadline, keep_open, seconds_left


class Looks:
    """A judge that says no for some looks, and then yes."""

    def __init__(self, looks: int) -> None:
        self.left, self.begun = looks, 0

    def begin(self):
        self.begun += 1

    def had_its_time(self):
        self.left -= 1
        return self.left < 0


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(operation_deadline, "LOOK_S", 0.05)


async def test_a_deadline_is_moved_with_those_around_it_and_not_for_ever(monkeypatch):
    monkeypatch.setattr(operation_deadline, "LONGEST_EXTENSION_S", 30.0)
    assert not keep_open(99.0), "there is no operation"
    async with OperationDeadline(0.4, movable=True) as outer, OperationDeadline(0.2) as inner:
        assert keep_open(20.0) and 19 < seconds_left() <= 20
        assert keep_open(10.0) and 19 < seconds_left() <= 20, "there are so many"
        assert inner.extended > outer.extended > 19
        await asyncio.sleep(0.5)
        assert not keep_open(60.0), "that would be more than 30 s"
    with pytest.raises(TimeoutError):
        async with OperationDeadline(0.02, movable=True):
            assert keep_open(0.04)
            try:
                await asyncio.sleep(20)
            finally:
                assert not keep_open(5.0), "it has passed"


async def test_the_outermost_operation_decides_whether_deadlines_move():
    async with OperationDeadline(5.0), OperationDeadline(1.0, movable=True):
        assert not keep_open(20.0)
    async with OperationDeadline(math.inf, movable=True), OperationDeadline(1.0):
        assert keep_open(20.0) and seconds_left() > 19
    assert seconds_left() == math.inf


@pytest.mark.parametrize(("looks", "movable"), [(0, True), (3, True), (3, False)])
async def test_a_judge_decides_when_a_wait_is_over(looks, movable):
    judge, began = Looks(looks), time.monotonic()
    deadline = OperationDeadline(0.05, judge, movable=movable)
    with pytest.raises(TimeoutError):
        async with deadline:
            await asyncio.sleep(20)
    assert deadline.own is (movable or not looks) and judge.begun == 1
    assert (deadline.extended > 0.1) is (movable and looks > 0)
    assert time.monotonic() - began < 15


async def test_what_ends_meanwhile_is_not_cut_off():
    judge = Looks(10**6)
    async with OperationDeadline(math.inf, movable=True), OperationDeadline(0.02, judge) as deadline:
        await asyncio.sleep(0.3)
    assert deadline.extended > 0.1 and not deadline.own


async def test_a_judge_that_fails_ends_the_wait():
    class Fails(Looks):
        def had_its_time(self):
            raise PermissionError("there is no /proc")

    with pytest.raises(PermissionError):
        async with OperationDeadline(0.02, Fails(0), movable=True):
            await asyncio.sleep(20)


async def test_an_operation_that_is_over_moves_no_more():
    """A task that outlives the operation in which it was started."""
    over = asyncio.Event()

    async def outlives():
        await over.wait()
        return keep_open(5.0)

    async with OperationDeadline(1.0, movable=True):
        task = asyncio.create_task(outlives())
    over.set()
    assert await task is False
