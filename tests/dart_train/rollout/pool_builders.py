"""Pools for tests: replicas with the tiny model, and replicas that only echo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from dart_train.rollout.fleet.engine_pool import EnginePool
from dart_train.rollout.fleet.replica import ReplicaState, Weights
from dart_train.rollout.fleet.weight_sync import WeightSync
from dart_train.rollout.settings.rollout_config import EngineConfig

ECHO = "echo_engine:EchoServer"


def make_weights(directory: Path) -> Path:
    """A directory that looks like a checkpoint and holds no weights."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    return directory


def model_pool(replicas: int, model: Path, sockets: Path, **settings: float) -> EnginePool:
    config = EngineConfig(replicas=replicas, health_interval_s=0.2, **settings)
    return EnginePool(config, Weights(str(model), 3), directory=sockets, log_dir=sockets)


def echo_pool(replicas: int, weights: Path, sockets: Path, **settings: float) -> EnginePool:
    config = EngineConfig(kind=ECHO, replicas=replicas, **{"health_interval_s": 0.2, "max_backoff_s": 0.3, **settings})
    return EnginePool(config, Weights(str(weights), 3), directory=sockets, log_dir=sockets)


def pid_of(pool: EnginePool, index: int) -> int:
    process = pool.replicas[index].process
    assert process is not None
    return process.pid


async def until(condition: Callable[[], bool], timeout: float = 90.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.02)


async def update_some(sync: WeightSync) -> int:
    """Begin the updates that may begin now, and wait for them; return how many they were."""
    async with asyncio.TaskGroup() as group:
        return await sync.begin(group)


def all_ready(pool: EnginePool) -> Callable[[], bool]:
    return lambda: all(replica.state is ReplicaState.READY for replica in pool.replicas)
