from __future__ import annotations

import asyncio

import pytest

from dart_gym.core.errors import DesktopError
from dart_gym.desktops.base.together import together


async def test_when_one_fails_the_others_have_ended_and_its_own_error_is_raised():
    ended = []

    async def goes_on() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise DesktopError("no sites")

    with pytest.raises(DesktopError, match="no sites"):
        await together(goes_on(), fails())
    assert ended == [True]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await together(goes_on(), goes_on())
    assert ended == [True] * 3


async def test_all_are_done():
    done = []

    async def work(name: str) -> None:
        done.append(name)

    await together(work("a"), work("b"))
    assert done == ["a", "b"]
