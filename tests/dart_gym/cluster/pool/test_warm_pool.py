"""Spare desktops: which are held, who gets them, and when they go."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.pool.boot_admission import MIB, Admission, Limits, Machine
from dart_gym.cluster.pool.desktop_pool import Pool
from dart_gym.cluster.pool.warm_pool import wanted
from dart_gym.core.errors import ConfigurationError, DesktopError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.fake_desktop import FakeDesktop

ONCE = DesktopSpec(kind="fake", width=100, height=100)
LARGE = dataclasses.replace(ONCE, width=200)
KEPT = dataclasses.replace(ONCE, reusable=True)


def test_spares_follow_what_was_asked_for():
    assert wanted([], 3) == {}
    assert wanted([ONCE], 0) == {}
    assert wanted([ONCE, LARGE], 1) == {LARGE: 1}  # the last one
    assert wanted([ONCE, ONCE, LARGE], 1) == {ONCE: 1}
    assert wanted([ONCE, ONCE, LARGE], 3) == {ONCE: 2, LARGE: 1}


def test_kept_desktops_get_the_last_spare_never():
    assert wanted([KEPT, KEPT], 1) == {}
    assert wanted([KEPT, KEPT], 3) == {KEPT: 2}
    assert wanted([KEPT, KEPT, ONCE], 3) == {ONCE: 3}


specs = st.sampled_from([ONCE, LARGE, KEPT, dataclasses.replace(LARGE, reusable=True)])


@given(asked=st.lists(specs, max_size=40), size=st.integers(0, 9))
def test_the_plan_never_exceeds_its_size_nor_invents_specs(asked, size):
    plan = wanted(asked, size)
    assert plan.total() <= size and set(plan) <= set(asked) and all(count > 0 for count in plan.values())
    if size and any(not spec.reusable for spec in asked):
        assert plan.total() == size and not any(spec.reusable for spec in plan)


class Booting(FakeDesktop):
    """Boots when the test lets it."""

    may_boot: asyncio.Event
    fails = False
    boots = 0

    async def start(self, *, timeout: float = 60.0) -> None:
        type(self).boots += 1
        await self.may_boot.wait()
        if self.fails:
            raise DesktopError("no more of these")
        await super().start()


@pytest.fixture
def booting():
    """A class of desktops of the test's own."""
    kind = type("BootingHere", (Booting,), {"may_boot": asyncio.Event(), "made": []})
    kind.may_boot.set()
    return kind


@pytest.fixture
async def pool(booting):
    pool = Pool(2, booting, warm=1)
    yield pool
    booting.may_boot.set()
    await pool.close()


async def episode(pool, slot, spec=ONCE) -> bool:
    """Start an episode; whether its desktop was ready."""
    async with pool.prepared(slot, spec):
        ready = slot.fits(spec)
        await slot.desktop(spec)
    return ready


def ready(pool) -> int:
    return sum(warm.slot.alive for warm in pool.warm_pool.desktops)


async def test_the_next_episode_takes_the_spare_and_another_one_is_booted(pool, until):
    slot = await pool.acquire(ONCE)
    assert not await episode(pool, slot)
    for _ in range(3):
        await until(lambda: ready(pool) == 1)
        used = slot.booted
        assert await episode(pool, slot)
        assert slot.booted is not used
        await until(lambda used=used: not used.alive)  # the old one is thrown away
    assert (pool.warm_pool.taken, pool.warm_pool.missed) == (3, 1)


async def test_a_spare_that_still_boots_is_waited_for(pool, booting, until):
    slot = await pool.acquire(ONCE)
    await episode(pool, slot)
    await until(lambda: ready(pool) == 1)
    booting.may_boot.clear()
    assert await episode(pool, slot)
    await until(lambda: booting.boots == 3)  # the spare of the next episode
    waiting = asyncio.create_task(episode(pool, slot))
    other = asyncio.create_task(pool.acquire(ONCE))
    await other
    booting.may_boot.set()
    assert await waiting and pool.warm_pool.taken == 2


async def test_who_gives_up_leaves_the_spare_to_others(pool, booting, until):
    slot = await pool.acquire(ONCE)
    await episode(pool, slot)
    await until(lambda: ready(pool) == 1)
    booting.may_boot.clear()
    await episode(pool, slot)
    await until(lambda: booting.boots == 3)
    waiting = asyncio.create_task(episode(pool, slot))
    await until(lambda: not pool.warm_pool.desktops)
    waiting.cancel()
    await asyncio.wait({waiting})
    booting.may_boot.set()
    await until(lambda: ready(pool) == 1)
    assert booting.boots == 3


async def test_a_spare_that_died_is_replaced(pool, until):
    slot = await pool.acquire(ONCE)
    await episode(pool, slot)
    await until(lambda: ready(pool) == 1)
    pool.warm_pool.desktops[0].slot.booted.crash()
    await pool.maintain(60.0)
    await until(lambda: ready(pool) == 1)
    assert await episode(pool, slot)


async def test_a_spec_whose_spare_does_not_boot_is_left_alone_and_its_caller_is_told(pool, booting, until):
    slot = await pool.acquire(ONCE)
    await episode(pool, slot)
    await until(lambda: ready(pool) == 1)
    booting.fails = True
    await episode(pool, slot)
    await until(lambda: pool.warm_pool.failed)
    boots = booting.boots
    for _ in range(3):
        await pool.maintain(60.0)
    assert booting.boots == boots  # no endless tries
    with pytest.raises(DesktopError, match="no more of these"):
        await episode(pool, slot)


async def test_what_nobody_asks_for_any_more_is_thrown_away(pool, until):
    slot = await pool.acquire(ONCE)
    await episode(pool, slot)
    await until(lambda: ready(pool) == 1)
    await asyncio.sleep(0.001)
    await pool.maintain(0.0005)
    assert pool.warm_pool.desktops == []
    await pool.maintain(60.0)
    assert pool.warm_pool.desktops == []


async def test_a_desktop_at_a_url_has_no_spare(pool):
    spec = dataclasses.replace(ONCE, url="http://there:5000")
    await episode(pool, await pool.acquire(spec), spec)
    assert pool.warm_pool.desktops == []


async def test_spares_need_room_for_two_and_make_way(booting, until):
    free = [1000 * MIB]
    admission = Admission(Limits(reserve=100 * MIB), lambda: Machine(free[0], 4096 * MIB))
    admission.learn(ONCE, 300 * MIB)
    pool = Pool(2, booting, warm=1, admission=admission)
    first, second = await pool.acquire(ONCE), await pool.acquire(ONCE)
    free[0] = 699 * MIB
    await episode(pool, first)
    assert pool.warm_pool.desktops == []
    free[0] = 700 * MIB
    pool.warm_pool.tend()
    await until(lambda: ready(pool) == 1)
    free[0] = 200 * MIB
    waiting = asyncio.create_task(episode(pool, second, LARGE))
    admission.learn(LARGE, 300 * MIB)
    await until(lambda: ready(pool) == 0)
    free[0] = 500 * MIB
    await waiting
    await pool.close()


def test_a_negative_number_is_refused(booting):
    with pytest.raises(ConfigurationError, match="must not be negative"):
        Pool(1, booting, warm=-1)


async def test_a_server_resets_on_spares_and_says_so(start_server, until):
    server = await start_server(desktops=2, warm=2)
    client = ClusterClient(server.url)
    async with client.session() as first, client.session() as second:
        assert (await first.reset("fake/click-button", seed=0)).terminal is None
        await until(lambda: ready(server.pool) == 1)
        status = await client.status()
        assert status["warm"] == [{"spec": "fake 168x224 bare", "ready": True}] and status["warm_missed"] == 1
        result = await second.reset("fake/click-button", seed=0)
        assert result.terminal is None and result.timings["boot"] < 0.05
        assert (await client.status())["warm_taken"] == 1
