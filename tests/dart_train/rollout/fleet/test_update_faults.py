"""What a failed update says about the weights: nothing where the replica did not answer before it began."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from dart_agent.engines.base.engine import EngineBusy, EngineError
from dart_agent.engines.kinds.transformers_server import TransformersServer
from dart_train.rollout.fleet.replica import ReplicaSpec, ReplicaState, UpdateLocks, Weights
from dart_train.rollout.fleet.replica_life import Fleet, ReplicaLife
from dart_train.rollout.fleet.weight_sync import WeightSync
from dart_train.rollout.settings.rollout_config import EngineConfig

OLD, NEW = Weights("/v1", 1), Weights("/v2", 2)


class Engine:
    """Loads what it is given, or fails at it."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure, self.version = failure, 1

    async def info(self):
        return SimpleNamespace(version=self.version)

    async def update_weights(self, path, version):
        if self.failure is not None:
            raise self.failure
        self.version = version


class Replica(SimpleNamespace):
    """What `ReplicaLife` asks of a replica."""

    def __init__(self, name: str, engine: Engine | None, *, silent: bool = False, died: bool = False) -> None:
        spec = ReplicaSpec(0, TransformersServer())
        super().__init__(
            name=name, engine=engine, spec=spec, silent=silent, died=died, state=ReplicaState.READY, version=1,
            verified=1, tainted=False, failures=0, updating_to=None, why_down="", alarm=asyncio.Event(), in_flight=0,
        )  # fmt: skip

    @property
    def usable(self):
        return self.state in (ReplicaState.READY, ReplicaState.UPDATING, ReplicaState.DRAINING)

    async def path_of(self, weights):
        return weights.path

    async def told(self):
        if self.silent or self.engine is None:
            raise EngineError("no answer")
        return await self.engine.info()

    async def look(self, timeout):
        info = await self.told()
        self.version = info.version
        return info


def fleet_of(*replicas: Replica) -> tuple[WeightSync, Fleet]:
    config = EngineConfig(fingerprint_tolerance=None)
    fleet = Fleet(config, UpdateLocks(None, 30.0), OLD)
    lives = {one.name: ReplicaLife(one, fleet) for one in replicas}
    pool = SimpleNamespace(replicas=list(replicas), lives=lives, fleet=fleet, config=config)
    return WeightSync(lambda: NEW, pool), fleet


async def test_replicas_that_do_not_answer_cost_a_version_nothing():
    first, second = Replica("a", Engine(), silent=True), Replica("b", Engine(), died=True)
    sync, _ = fleet_of(first, second)
    for replica in (first, second):
        await sync.update_replica(replica, NEW)
        assert replica.state is ReplicaState.DOWN, "it is out of service, and started again"
    assert sync.failed == 0 and not sync.skipped
    back = Replica("a", Engine())
    sync, _ = fleet_of(back)
    await sync.update_replica(back, NEW)
    assert sync.updates == 1 and back.version == 2


async def test_weights_that_ready_replicas_do_not_load_are_skipped_as_before():
    replicas = [Replica(name, Engine(EngineError("shapes differ"))) for name in "ab"]
    sync, _ = fleet_of(*replicas)
    for replica in replicas:
        await sync.update_replica(replica, NEW)
    assert sync.failed == 2 and NEW in sync.skipped


async def test_a_replica_that_is_taken_out_meanwhile_over_something_else_is_busy():
    class Slow(Engine):
        async def update_weights(self, path, version):
            life.take_out("no response within 60 s", "late")
            self.version = version

    replica = Replica("a", Slow())
    sync, _ = fleet_of(replica)
    life = sync.pool.lives["a"]
    with pytest.raises(EngineBusy, match="no response within 60 s"):
        await life.update(NEW)
    assert not sync.skipped
