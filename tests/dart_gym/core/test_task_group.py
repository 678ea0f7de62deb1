"""A failed group leaves no cancellation counted, also on a Python whose own group does."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from dart_gym.core.task_group import TaskGroup
from dart_gym.desktops.base.together import together

PACKAGES = [Path(__file__).parents[3] / name for name in ("dart_gym", "dart_agent", "dart_train")]


async def fail() -> None:
    raise OSError("no")


@pytest.fixture
def python_3_11_2(monkeypatch):
    """Its group counts the cancellation that woke the caller, and forgets to count it off."""
    leave = asyncio.TaskGroup.__aexit__

    async def counted(group, *reason):
        try:
            return await leave(group, *reason)
        except BaseExceptionGroup as failed:
            asyncio.current_task().cancel()
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                raise failed from None
            raise

    monkeypatch.setattr(asyncio.TaskGroup, "__aexit__", counted)


@pytest.mark.parametrize("works", [lambda: together(fail()), lambda: grouped()])
async def test_a_time_out_around_a_group_that_failed_still_works(works, python_3_11_2):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            try:
                await works()
            except (OSError, ExceptionGroup):
                assert asyncio.current_task().cancelling() == 0
            await asyncio.Event().wait()


async def grouped() -> None:
    async with TaskGroup() as group:
        group.create_task(fail())


async def test_who_cancels_the_caller_is_heard():
    async def works() -> None:
        async with TaskGroup() as group:
            group.create_task(asyncio.Event().wait())

    task = asyncio.create_task(works())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_no_module_uses_another_group():
    found = [
        str(path)
        for package in PACKAGES
        for path in package.rglob("*.py")
        if path.name != "task_group.py" and re.search(r"asyncio\.TaskGroup\b", path.read_text())
    ]
    assert not found
