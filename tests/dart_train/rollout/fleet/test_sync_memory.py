"""A fleet whose engines read new weights from a trainer's memory: replicas die, files come late, the trainer ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pool_builders import all_ready, model_pool, pid_of, until, update_some

from dart_train.data.groups import checkpoint_rows
from dart_train.data.manager.data_manager import DataManager
from dart_train.rollout.fleet.engine_pool import EnginePool
from dart_train.rollout.fleet.replica import ReplicaState
from dart_train.rollout.fleet.weight_files import Weights, in_memory
from dart_train.rollout.fleet.weight_sync import WeightSync

pytestmark = [pytest.mark.train, pytest.mark.process, pytest.mark.timeout(300)]


@dataclass
class Trainer:
    """A trainer's publications: its files are written once `write` is set."""

    data: DataManager
    model: object
    publisher: object
    write: threading.Event

    def publish(self, version: int) -> None:
        """Publish weights that no version before has."""
        import torch

        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1.05)
        self.publisher.publish(self.model, None, version)
        assert self.publisher.version == version

    def end(self) -> None:
        self.write.set()
        self.publisher.close()


@pytest.fixture
def trainer(model_dir: Path, tmp_path: Path) -> Iterator[Trainer]:
    from dart_train.trainer.weights import checkpoint
    from dart_train.trainer.weights.model_loading import load_model
    from dart_train.trainer.weights.publisher import Publisher
    from dart_train.trainer.weights.weight_server import WeightServer

    write = threading.Event()

    def save(*taken, **facts):
        assert write.wait(200)
        return checkpoint.write_model(*taken, **facts)

    with DataManager.open(f"sqlite:///{tmp_path}/d.sqlite", tmp_path, "run") as data:
        start = tmp_path / "v000003"
        shutil.copytree(model_dir, start)
        data.publish(3, start, "initial")
        publisher = Publisher(data, tmp_path / "versions", model_dir, every=1, keep=2, save=save, server=WeightServer())
        made = Trainer(data, load_model(model_dir), publisher, write)
        yield made
        made.end()


def sync_of(trainer: Trainer, pool: EnginePool) -> WeightSync:
    def offered() -> Weights | None:
        return in_memory(trainer.data.fact(checkpoint_rows.IN_MEMORY))

    return WeightSync(trainer.data.newest_here, pool, interval_s=0.02, offered=offered)


@contextlib.asynccontextmanager
async def running(sync: WeightSync):
    task = asyncio.create_task(sync.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def serving(pool: EnginePool, version: int) -> None:
    await until(lambda: all(r.version == version and r.state is ReplicaState.READY for r in pool.replicas))


@pytest.mark.thorough
async def test_versions_are_served_before_their_files_are_there(trainer, model_dir, sockets, prompt, sampling):
    """A replica that dies starts from the newest files, and reads the newest version from memory again."""
    async with model_pool(2, model_dir, sockets) as pool:
        await until(all_ready(pool))
        sync = sync_of(trainer, pool)
        async with running(sync):
            trainer.publish(4)
            await serving(pool, 4)
            assert trainer.data.newest_checkpoint().version == 3 and pool.fleet.weights.version == 3
            assert (sync.updates, sync.from_memory, sync.failed) == (2, 2, 0)
            assert (await pool.generate(prompt, sampling)).version == (4, 4)
            replica = pool.replicas[0]
            os.kill(pid_of(pool, 0), signal.SIGKILL)
            await until(lambda: replica.restarts > 0)
            await serving(pool, 4)
            assert sync.from_memory == 3
            trainer.write.set()
            await until(lambda: pool.fleet.weights.version == 4)
            assert sync.updates == 3, "its files are for those that start"


@pytest.mark.slow
async def test_engines_take_files_where_the_trainer_has_ended(trainer, model_dir, sockets, prompt, sampling, tmp_path):
    """A version that cannot be read from memory costs no replica its place."""
    async with model_pool(2, model_dir, sockets) as pool:
        await until(all_ready(pool))
        sync = sync_of(trainer, pool)
        trainer.publish(4)
        trainer.data.set_fact(checkpoint_rows.IN_MEMORY, {**trainer.data.fact(checkpoint_rows.IN_MEMORY), "version": 9})
        assert await update_some(sync) == 1
        assert (sync.updates, sync.failed) == (0, 1) and not pool.fleet.faults
        assert all(replica.state is ReplicaState.READY and replica.version == 3 for replica in pool.replicas)
        assert await update_some(sync) == 0, "version 9 is not tried again, and 4 has no files yet"
        trainer.end()
        async with running(sync):
            await serving(pool, 4)
        assert (sync.updates, sync.from_memory) == (2, 0) and not sync.skipped
        assert in_memory(trainer.data.fact(checkpoint_rows.IN_MEMORY)) is None, "its socket is gone"


@pytest.mark.slow
async def test_weights_that_answer_otherwise_than_their_fingerprint_are_not_served(trainer, model_dir, sockets):
    """The replica starts again from files, and the version is left to its files."""
    async with model_pool(1, model_dir, sockets) as pool:
        await until(all_ready(pool))
        sync = sync_of(trainer, pool)
        await asyncio.to_thread(trainer.publish, 4)
        offered = trainer.publisher.server.find(4)
        answers = offered.facts()["fingerprint"]
        answers["logprobs"] = [[-9.0 for _ in row] for row in answers["logprobs"]]
        async with running(sync):
            await until(lambda: sync.unread[4] == 2 and all_ready(pool)())
            assert pool.replicas[0].version == 3 and pool.fleet.faults["update"] == 2
            trainer.write.set()
            await serving(pool, 4)
        assert (sync.updates, sync.from_memory) == (1, 0)
