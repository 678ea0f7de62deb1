"""Two rollout services, as processes, on one fleet of replicas: never two updates of one replica at a time."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from faulty_engine import FaultyEngine, served
from pool_builders import make_weights

from dart_agent.engines.base.engine import EngineBusy, EngineError
from dart_agent.engines.kinds.transformers_server import TransformersServer
from dart_gym.utils.processes import die_with_parent
from dart_train.core.fingerprint import Fingerprint
from dart_train.core.train_errors import DatabaseBusyError
from dart_train.rollout.fleet.replica import Replica, ReplicaSpec, UpdateLocks

USER = str(Path(__file__).parents[1] / "fleet_user.py")
THEIRS = Replica(ReplicaSpec(0, TransformersServer(), "ws+unix:///shared.sock"))


class SlowLoading(FaultyEngine):
    """Notes how many load into it at the same time; `held` keeps them in it."""

    def __init__(self, name: str, version: int) -> None:
        super().__init__(name, version)
        self.held: asyncio.Event | None = None
        self.entered = asyncio.Event()
        self.loading = self.most_loading = 0

    async def update_weights(self, path: str, version: int) -> None:
        self.loading += 1
        self.most_loading = max(self.most_loading, self.loading)
        self.entered.set()
        try:
            if self.held is not None:
                await self.held.wait()
            await asyncio.sleep(0.05)
            await super().update_weights(path, version)
        finally:
            self.loading -= 1


@pytest.fixture
def publish(data, tmp_path):
    """Publish a version with a fingerprint; returns its number."""

    def publish(version: int) -> int:
        path = make_weights(tmp_path / f"v{version}")
        Fingerprint(((1, 2, 3, 4),), ((1, 2, 3, 4),), ((-1.0,) * 4,), ()).write(path)
        data.publish(version, path, "training")
        return version

    publish(3)
    return publish


@contextlib.asynccontextmanager
async def service(tmp_path: Path, urls: tuple[str, ...]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, USER, str(tmp_path / "data" / "dart.sqlite"), *urls),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=die_with_parent(),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.stdin.close()
            async with asyncio.timeout(60):
                await process.wait()


async def serves(process: asyncio.subprocess.Process, version: int) -> str:
    async with asyncio.timeout(90):
        while line := (await process.stdout.readline()).decode():
            if line.startswith(f"{version} "):
                return line
    raise AssertionError("the service ended")


@pytest.mark.process
async def test_two_services_update_a_shared_fleet_one_after_the_other(publish, tmp_path, sockets):
    """What one has loaded, the other only looks at; nobody brings old weights back."""
    engines = SlowLoading("a", 3), SlowLoading("b", 3)
    async with (
        served(sockets, *engines) as urls,
        service(tmp_path, urls) as first,
        service(tmp_path, urls) as second,
    ):
        await asyncio.gather(serves(first, 3), serves(second, 3))
        for version in range(4, 8):
            publish(version)
            await asyncio.gather(serves(first, version), serves(second, version))
    for engine in engines:
        assert engine.most_loading == 1
        assert engine.loads == sorted(engine.loads) and set(engine.loads) <= {4, 5, 6, 7} and 7 in engine.loads


@pytest.mark.process
async def test_a_service_that_is_killed_amid_an_update_gives_way(publish, tmp_path, sockets):
    engine = SlowLoading("only", 3)
    async with served(sockets, engine) as urls, service(tmp_path, urls) as first:
        await serves(first, 3)
        engine.held = asyncio.Event()
        publish(4)
        async with asyncio.timeout(60):
            await engine.entered.wait()
        async with service(tmp_path, urls) as second:
            first.kill()
            await first.wait()
            engine.held.set()
            await serves(second, 4)
    assert engine.real_version == 4


class Table:
    """Locks in memory, that somebody can steal, in a database that can be away."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self.away = False
        self.taken = 0

    def take_lock(self, name: str, holder: str, ttl_s: float) -> str:
        if self.away:
            raise DatabaseBusyError("away")
        self.taken += 1
        self.holder = self.holder or holder
        return self.holder

    def give_back_lock(self, name: str, holder: str) -> None:
        assert self.holder == holder
        self.holder = None


async def test_an_update_whose_lock_was_lost_is_cut_off():
    table = Table()
    locks = UpdateLocks(table, lease_s=0.06)
    with pytest.raises(EngineError, match="the lock on its updates was lost to thief"):
        async with locks.held(THEIRS), asyncio.timeout(20):
            table.holder = "thief"
            await asyncio.Event().wait()
    assert table.holder == "thief"
    with pytest.raises(EngineBusy, match="the rollout service thief updates it"):
        async with locks.held(THEIRS):
            raise AssertionError("not ours")


async def test_a_lock_is_held_while_it_lasts_and_also_while_the_database_is_away():
    table = Table()
    locks = UpdateLocks(table, lease_s=0.03)
    async with asyncio.timeout(20), locks.held(THEIRS):
        while table.taken < 3:
            await asyncio.sleep(0.01)
        table.away = True
        await asyncio.sleep(0)
        table.away = False
        goal = table.taken + 2
        while table.taken < goal:
            await asyncio.sleep(0.01)
    assert table.holder is None
    table.away = True
    with pytest.raises(EngineBusy, match="cannot be taken: away"):
        async with locks.held(THEIRS):
            raise AssertionError("not ours")
    ours = Replica(ReplicaSpec(0, TransformersServer()), url="ws+unix:///ours.sock")
    async with locks.held(ours):
        assert table.holder is None, "what we started is nobody else's"
