"""A node whose disk is full while it fetches a version: its engine goes on with the one that it has, and says why."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dart_agent.models.tiny_model import build_tiny_model
from dart_train.core.train_errors import DiskFullError
from dart_train.data.files.object_storage import open_storage
from dart_train.data.files.shared_directories import fetch, place, share
from dart_train.nodes.program_host import RunOnNodes
from dart_train.nodes.ray_cluster import EnginesOnNodes
from dart_train.nodes.run_keys import RunKeys
from dart_train.rollout.fleet.engine_pool import EnginePool
from dart_train.rollout.fleet.replica import ReplicaState, Weights
from dart_train.rollout.fleet.weight_sync import WeightSync
from dart_train.rollout.settings.rollout_config import EngineConfig
from tests.helpers.local_ray import local_ray

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A disk that has room for one version and half of another."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def resize(disk: Path, size: float) -> None:
    subprocess.run(["mount", "-o", f"remount,size={int(size)}", disk], check=True)


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*"))


def test_a_disk_that_fills_up_during_the_fetch_is_what_is_named(disk, bucket, tmp_path):
    (large := tmp_path / "v000000").mkdir()
    (large / "model.safetensors").write_bytes(os.urandom(3 << 20))
    store = open_storage(f"{bucket}/{tmp_path.name}")
    share(store, "versions", large)
    with pytest.raises(DiskFullError, match="no space left on the device"):
        fetch(place(store, "versions", large), disk / "copies")
    with pytest.raises(DiskFullError, match="no space left on the device"):  # somebody else has filled it meanwhile
        store.download("versions/v000000/model.safetensors", disk / "model.safetensors")


async def test_a_replica_keeps_its_version_until_there_is_room(disk, bucket, tmp_path, monkeypatch):
    keys = RunKeys.of_run(tmp_path / "keys")
    for name, value in keys.environment(tmp_path / "keys" / "authority.pem").items():
        monkeypatch.setenv(name, value)
    (tmp_path / "runs" / "r").mkdir(parents=True)
    store = open_storage(f"{bucket}/{tmp_path.name}")

    def published(version: int) -> Weights:
        build_tiny_model(path := tmp_path / f"v{version:06d}", seed=version)
        share(store, "versions", path)
        return Weights(str(path), version, place(store, "versions", path))

    newest = [published(0)]
    resize(disk, 1.5 * size_of(tmp_path / "v000000"))
    access = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    run = RunOnNodes("r", str(tmp_path / "runs" / "r"), "no node", "name: r\n", keys, str(tmp_path), "", access)
    with local_ray(run, disk, cores=1):
        settings = EngineConfig(replicas=1, start_timeout_s=300)
        pool = EnginePool(settings, newest[0], directory=tmp_path, log_dir=tmp_path, nodes=EnginesOnNodes(run))
        async with pool, asyncio.timeout(500):
            (replica,) = pool.replicas
            sync = WeightSync(lambda: newest[0], pool, interval_s=0.05)

            async def until(condition) -> None:
                while not condition():
                    await asyncio.sleep(0.1)

            await until(lambda: replica.state is ReplicaState.READY)
            update = asyncio.create_task(sync.run())
            newest[0] = published(1)
            await until(lambda: newest[0] in sync.skipped)
            reason = sync.skipped[newest[0]]
            assert "no space left on the device while writing" in reason and "\n" not in reason
            assert str(disk) in reason and "engine-0 cannot get s3://" in reason
            assert replica.state is ReplicaState.READY and replica.verified == 0 and replica.restarts == 0
            resize(disk, 64 << 20)
            newest[0] = published(2)
            await until(lambda: replica.verified == 2)
            assert replica.restarts == 0
            update.cancel()
