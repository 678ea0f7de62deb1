"""Admission: what a machine can bear is decided from numbers, and who waits is told why."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.pool.boot_admission import (
    MIB,
    Admission,
    Admit,
    Limits,
    Machine,
    Wait,
    admit,
    control_groups,
    read_machine,
)
from dart_gym.cluster.wire.frames import ErrorCode
from dart_gym.core.errors import ClusterError, ConfigurationError
from dart_gym.desktops.base.desktop import DesktopSpec

BARE = DesktopSpec(profile="bare", width=320, height=240)
BROWSER = DesktopSpec(profile="browser", width=320, height=240)
SMALL = Limits(reserve=100 * MIB)


def decide(machine: Machine, limits: Limits = SMALL, **changes) -> Admit | Wait:
    return admit(machine, limits, **{"need": 300 * MIB, "promised": 0, "running": 2, **changes})


def test_memory_is_a_hard_rule():
    assert decide(Machine(400 * MIB, 4096 * MIB)) == Admit()
    wait = decide(Machine(399 * MIB, 4096 * MIB))
    assert isinstance(wait, Wait)
    assert "needs about 300 MiB" in wait.reason and "399 MiB are free" in wait.reason and "2 running" in wait.reason


def test_memory_here_does_not_matter_to_desktops_elsewhere():
    assert decide(Machine(0, 4096 * MIB), Limits(memory=False)) == Admit()


def test_what_boots_already_counts():
    assert isinstance(decide(Machine(699 * MIB, 4096 * MIB), promised=300 * MIB), Wait)
    assert decide(Machine(700 * MIB, 4096 * MIB), promised=300 * MIB) == Admit()


def test_the_first_desktop_always_boots():
    assert decide(Machine(0, 4096 * MIB), running=0) == Admit()


def test_what_cannot_be_read_limits_nothing():
    assert decide(Machine(None, None)) == Admit()


@given(
    available=st.integers(0, 1 << 36),
    need=st.integers(0, 1 << 32),
    promised=st.integers(0, 1 << 34),
    running=st.integers(1, 300),
)
def test_nothing_is_admitted_into_the_reserve(available, need, promised, running):
    decision = decide(Machine(available, 1 << 36), need=need, promised=promised, running=running)
    assert isinstance(decision, Admit) == (available - promised - need >= 100 * MIB)


def test_impossible_limits_are_refused():
    with pytest.raises(ConfigurationError, match="reserved memory"):
        Limits(reserve=-1)


def test_this_machine_can_be_read():
    machine = read_machine()
    assert machine.available and machine.total and 0 < machine.available <= machine.total


@pytest.mark.parametrize(
    ("line", "directory", "files"),
    [
        ("0::/app/part", "app", ("memory.max", "memory.current", "inactive_file")),
        (
            "4:memory:/app/part",
            "memory/app",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_limits_of_control_groups_are_seen(tmp_path, line, directory, files):
    member = tmp_path / "cgroup"
    member.write_text(f"7:cpu:/app\n{line}\n")
    group = tmp_path / "fs" / directory
    (group / "part").mkdir(parents=True)
    limit, usage, reclaimable = files
    (group / "part" / limit).write_text("max\n")
    (group / limit).write_text(f"{1000 * MIB}\n")
    (group / usage).write_text(f"{700 * MIB}\n")
    (group / "memory.stat").write_text(f"anon 5\n{reclaimable} {200 * MIB}\n")
    assert control_groups(tmp_path / "fs", member) == [(500 * MIB, 1000 * MIB)]


def test_without_control_groups_nothing_is_limited(tmp_path):
    assert control_groups(tmp_path, tmp_path / "none") == []


def test_estimates_rise_at_once_and_fall_slowly():
    admission = Admission()
    assert admission.need(DesktopSpec(kind="fake")) == 0
    assert admission.need(BROWSER) > admission.need(BARE) > 0
    admission.learn(BARE, 200 * MIB)
    assert admission.need(BARE) == 200 * MIB
    admission.learn(BARE, 100 * MIB)
    assert admission.need(BARE) == 190 * MIB


class Memory:
    """A machine whose free memory a test sets."""

    def __init__(self, mib: int) -> None:
        self.mib = mib

    def __call__(self) -> Machine:
        return Machine(self.mib * MIB, 4096 * MIB)


async def boot(admission: Admission, order: list[str], name: str, spec: DesktopSpec = BARE) -> None:
    async with admission.boot(spec, lambda: 1, lambda: False):
        order.append(name)


async def test_boots_wait_in_order_and_say_why(until):
    memory = Memory(10)
    admission = Admission(SMALL, memory)
    order: list[str] = []
    boots = [
        asyncio.create_task(boot(admission, order, "browser", BROWSER)),
        asyncio.create_task(boot(admission, order, "bare")),
    ]
    await until(lambda: admission.waiting == 2)
    assert "MiB are free" in admission.reason
    memory.mib = 4000
    await asyncio.gather(*boots)
    assert order == ["browser", "bare"] and admission.reason == "" and admission.waiting == 0


async def test_who_gives_up_lets_the_next_one_pass(until):
    memory = Memory(10)
    admission = Admission(SMALL, memory)
    order: list[str] = []
    first = asyncio.create_task(boot(admission, order, "first", BROWSER))
    await until(lambda: admission.reason)
    second = asyncio.create_task(boot(admission, order, "second"))
    memory.mib = 250  # enough for the second only
    await until(lambda: admission.waiting == 2)
    assert order == []
    first.cancel()
    await second
    assert order == ["second"]


async def test_idle_desktops_make_way():
    memory = Memory(10)
    admission = Admission(SMALL, memory)
    idle = [300, 300]

    def make_room() -> bool:
        if not idle:
            return False
        memory.mib += idle.pop()
        return True

    async with admission.boot(BARE, lambda: 1, make_room):
        assert idle == [300]


async def test_a_client_is_told_what_it_waits_for(start_server, desktops):
    server = await start_server(desktops=3)
    memory = Memory(4000)
    server.pool.admission = server.pool.warm_pool.admission = Admission(SMALL, memory)
    client = ClusterClient(server.url, settings=ClientSettings(reconnect_s=0.5))
    async with client.session() as first, client.session() as second:
        assert (await first.reset("fake/two-steps", seed=0)).terminal is None
        server.pool.admission.learn(desktops[0].spec, 200 * MIB)
        memory.mib = 250
        with pytest.raises(ClusterError, match="needs about 200 MiB of memory, and 250 MiB are free") as caught:
            await second.reset("fake/two-steps", seed=0, deadline_s=0.3)
        assert caught.value.code == ErrorCode.CAPACITY
        assert [slot.phase for slot in server.pool.slots].count("idle") == 2  # it holds no slot
        assert (await first.step(await first.oracle())).terminal is None  # who has a desktop goes on
        memory.mib = 400
        assert (await second.reset("fake/two-steps", seed=0)).terminal is None
        status = await client.status()
        assert status["waiting_to_boot"] == 0 and status["waiting_because"] == ""
