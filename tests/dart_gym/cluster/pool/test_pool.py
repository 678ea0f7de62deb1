"""The pool: who gets which slot, and which desktops survive."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from dart_gym.cluster.pool.desktop_pool import Pool
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.sessions.slot import Slot

SMALL = DesktopSpec(kind="fake", width=100, height=100, reusable=True)
LARGE = dataclasses.replace(SMALL, width=200)
FRAGILE = dataclasses.replace(SMALL, reusable=False)


@pytest.fixture
async def pool(desktops):
    pool = Pool(2, desktops)
    yield pool
    await pool.close()


async def use(pool: Pool, spec: DesktopSpec) -> Slot:
    slot = await pool.acquire(spec)
    await slot.desktop(spec)
    return slot


async def test_a_fitting_desktop_comes_before_an_empty_slot(pool, desktops):
    first = await use(pool, SMALL)
    pool.release(first)
    assert await pool.acquire(SMALL) is first
    assert await pool.acquire(SMALL) is not first


async def test_an_empty_seat_comes_before_another_desktop(pool, desktops):
    first = await use(pool, SMALL)
    pool.release(first)
    assert await use(pool, LARGE) is not first
    assert [desktop.alive for desktop in desktops] == [True, True]


async def test_the_desktop_that_lay_idle_longest_gives_way(pool, desktops):
    slots = [await use(pool, SMALL), await use(pool, dataclasses.replace(SMALL, height=50))]
    for slot in slots:
        pool.release(slot)
    assert await use(pool, LARGE) is slots[0]
    await asyncio.sleep(0)  # it is stopped in the background
    assert [desktop.alive for desktop in desktops] == [False, True, True]


async def test_a_desktop_that_is_not_reusable_goes_with_its_session(pool, desktops):
    pool.release(await use(pool, FRAGILE))
    await asyncio.sleep(0)
    assert not desktops[0].alive


async def test_a_lent_seat_swaps_for_a_free_desktop_that_fits(pool, desktops):
    large, small = await use(pool, LARGE), await use(pool, SMALL)
    pool.release(large)
    pool.fit(small, LARGE)
    assert small.spec == LARGE and large.spec == SMALL
    await small.desktop(LARGE)
    assert len(desktops) == 2


async def test_slots_are_given_in_the_order_of_asking(pool):
    slots = [await pool.acquire(), await pool.acquire()]
    order = []

    async def wait(name: str) -> None:
        slot = await pool.acquire()
        order.append(name)
        pool.release(slot)

    waiting = [asyncio.create_task(wait(name)) for name in "abc"]
    await asyncio.sleep(0)
    assert pool.waiting == 3
    pool.release(slots[0])
    late = asyncio.create_task(wait("d"))
    await asyncio.gather(*waiting, late)
    assert order == ["a", "b", "c", "d"]


async def test_who_gives_up_at_the_last_moment_passes_the_seat_on(pool):
    slots = [await pool.acquire(), await pool.acquire()]
    first, second = asyncio.create_task(pool.acquire()), asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    pool.release(slots[0])
    first.cancel()  # the slot is promised to it already
    assert await asyncio.wait_for(second, 1.0) is slots[0]


async def test_working_time_is_accounted_by_operation(pool):
    slot = await pool.acquire()
    with pytest.raises(ValueError), slot.working("step"):
        await asyncio.sleep(0.01)
        raise ValueError
    assert slot.busy_s["step"] >= 0.01 and slot.phase == "held"
