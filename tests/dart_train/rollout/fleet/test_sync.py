from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pool_builders import all_ready, echo_pool, make_weights, model_pool, pid_of, until, update_some

from dart_agent.engines.base.engine import Prompt, Sampling
from dart_agent.engines.kinds.transformers_server import TransformersServer
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_train.core.train_errors import DataError
from dart_train.rollout.fleet.replica import Replica, ReplicaSpec, ReplicaState, Weights
from dart_train.rollout.fleet.weight_files import why_unfit, why_unusable
from dart_train.rollout.fleet.weight_sync import WeightSync, next_stale


def replica(name: str, state: ReplicaState, version: int) -> Replica:
    made = Replica(ReplicaSpec("abcdefg".index(name), TransformersServer(), f"ws+unix:///{name}.sock"))
    made.state, made.version = state, version
    return made


class Mute(TransformersServer):
    program = (sys.executable, "-c", "import signal; signal.pause()")


def names(replicas: list[Replica]) -> list[str]:
    return ["abcdefg"[replica.spec.index] for replica in replicas]


def test_the_ready_replicas_with_the_oldest_weights_are_updated_first():
    replicas = [
        replica("a", ReplicaState.READY, 3),
        replica("b", ReplicaState.READY, 2),
        replica("c", ReplicaState.STARTING, 0),
        replica("d", ReplicaState.DOWN, 0),
    ]
    assert names(next_stale(replicas, 4)) == ["b"]
    assert next_stale(replicas[:1], 3) == []
    assert next_stale(replicas[2:], 4) == []


def test_one_replica_always_goes_on_serving_while_another_may():
    ready = [replica(name, ReplicaState.READY, 1) for name in "abcd"]
    assert names(next_stale(ready, 2, at_once=3)) == ["a", "b", "c"]
    assert names(next_stale(ready, 2, at_once=9)) == ["a", "b", "c"]
    assert names(next_stale(ready, 2, at_once=3, begun={"r0"})) == ["b", "c"]
    assert names(next_stale(ready, 2, at_once=1, begun={"r0"})) == []
    assert names(next_stale(ready[:2], 2, at_once=2, begun={"r0"})) == [], "b is the last that serves"
    assert names(next_stale(ready[:1], 2)) == ["a"], "nobody else is there"
    gone = replica("g", ReplicaState.DOWN, 1)
    assert names(next_stale([ready[0], gone], 2)) == [], "the other one comes back soon"
    assert names(next_stale([ready[0], gone], 2, spare_last=False)) == ["a"], "it has been away for long"
    assert names(next_stale(ready[:2], 2, at_once=2, spare_last=False)) == ["a"], "b goes on"
    gone.failures = 3
    assert names(next_stale([ready[0], gone], 2)) == ["a"], "the other one does not come back"


def test_a_version_is_tried_on_one_replica_first():
    ready = [replica(name, ReplicaState.READY, 1) for name in "abcd"]
    assert names(next_stale(ready, 2, at_once=3, proven=False)) == ["a"]
    assert names(next_stale(ready, 2, at_once=3, proven=False, begun={"r0"})) == []


@pytest.mark.train
def test_broken_checkpoint_directories_are_told_from_sound_ones(model_dir, tmp_path):
    assert why_unusable(model_dir) == ""
    assert "is no directory" in why_unusable(tmp_path / "none")
    for name, breakage, reason in [
        ("config", lambda d: (d / "config.json").write_text("{"), "config.json"),
        ("empty", lambda d: (d / "model.safetensors").unlink(), "holds no"),
        ("early", lambda d: os.truncate(d / "model.safetensors", 200), "cannot be read: .*header"),
        (
            "cut",
            lambda d: os.truncate(d / "model.safetensors", 5000),
            "cannot be read: .*not fully covered",
        ),
        (
            "header",
            lambda d: (d / "model.safetensors").write_bytes(b"\xff" * 64),
            "cannot be read: .*header",
        ),
        ("stub", lambda d: (d / "model.safetensors").write_bytes(b"12"), "cannot be read: .*header"),
        (
            "list",
            lambda d: (d / "model.safetensors").write_bytes(b"\x02" + b"\0" * 7 + b"[]"),
            "cannot be read: .*JSON",
        ),
    ]:
        copy = tmp_path / name
        shutil.copytree(model_dir, copy)
        breakage(copy)
        assert re.search(reason, why_unusable(copy)), name


class Table:
    """The newest checkpoint, as the checkpoint table would say."""

    def __init__(self) -> None:
        self.newest: Weights | None = None

    def __call__(self) -> Weights | None:
        return self.newest


def weights_at(directory: Path, version: int) -> Weights:
    """A directory that looks like a checkpoint."""
    make_weights(directory)
    return Weights(str(directory), version)


def copy_of(model: Path, target: Path) -> str:
    shutil.copytree(model, target)
    return str(target)


@pytest.fixture
def table() -> Table:
    return Table()


async def synced(sync: WeightSync, pool, version: int) -> None:
    task = asyncio.create_task(sync.run())
    try:
        await until(lambda: all(r.version == version and r.state is ReplicaState.READY for r in pool.replicas))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.thorough
@pytest.mark.train
async def test_replicas_are_updated_one_at_a_time_while_requests_go_on(model_dir, sockets, prompt, sampling, table):
    async with model_pool(2, model_dir, sockets) as pool:
        await until(all_ready(pool))
        sync = WeightSync(table, pool, interval_s=0.02)
        watching = True
        most_updating, versions = 0, set()

        async def watch() -> None:
            nonlocal most_updating
            while watching:
                updating = sum(r.state is ReplicaState.UPDATING for r in pool.replicas)
                most_updating = max(most_updating, updating)
                await asyncio.sleep(0)

        async def load() -> None:
            while watching:
                versions.add((await pool.generate(prompt, sampling)).version)

        running = [asyncio.create_task(work) for work in (watch(), load(), load(), load())]
        for version in (4, 5):
            table.newest = Weights(copy_of(model_dir, sockets / f"v{version}"), version)
            await synced(sync, pool, version)
        watching = False
        await asyncio.gather(*running)
        assert most_updating == 1
        assert sync.updates == 4 and versions >= {(3, 3), (5, 5)} and pool.fleet.weights.version == 5
        assert all(old == new for old, new in versions)


@pytest.mark.process
async def test_a_replica_that_is_alone_for_long_is_updated_all_the_same(weights_dir, sockets, table, monkeypatch):
    async with echo_pool(2, weights_dir, sockets) as pool:
        await until(all_ready(pool))
        sync = WeightSync(table, pool)
        table.newest = weights_at(sockets / "v4", 4)
        other = pool.replicas[1]
        other.spec = replace(other.spec, kind=Mute())
        os.kill(pid_of(pool, 1), signal.SIGKILL)
        await until(lambda: not other.usable)
        assert not await update_some(sync), "the other one may be back in a moment"
        monkeypatch.setattr("dart_train.rollout.fleet.weight_sync.ALONE_S", 0.0)
        assert await update_some(sync) == 1
        assert pool.replicas[0].version == 4


@pytest.mark.process
async def test_a_newer_checkpoint_supersedes_what_has_not_begun(weights_dir, sockets, table):
    async with echo_pool(2, weights_dir, sockets) as pool:
        await until(all_ready(pool))
        sync = WeightSync(table, pool)
        table.newest = weights_at(sockets / "v4", 4)
        assert await update_some(sync)
        table.newest = weights_at(sockets / "v6", 6)
        assert await update_some(sync) == 1 and await update_some(sync) == 1
        assert not await update_some(sync)
        assert [r.version for r in pool.replicas] == [6, 6] and sync.updates == 3


@pytest.mark.process
async def test_a_broken_directory_is_skipped_and_the_next_checkpoint_taken(weights_dir, sockets, table, caplog):
    async with echo_pool(1, weights_dir, sockets) as pool:
        sync = WeightSync(table, pool)
        table.newest = weights_at(sockets / "broken", 4)
        os.truncate(sockets / "broken" / "model.safetensors", 9)
        assert not await update_some(sync) and not await update_some(sync)
        assert caplog.text.count("checkpoint version 4 is skipped") == 1
        assert (await pool.generate(Prompt((1,)), Sampling())).version == (3, 3)
        table.newest = weights_at(sockets / "v5", 5)
        assert await update_some(sync)
        assert (await pool.generate(Prompt((1,)), Sampling())).version == (5, 5)


@pytest.mark.thorough
@pytest.mark.process
async def test_weights_that_no_engine_takes_are_given_up_and_the_last_good_ones_served(
    weights_dir, sockets, table, caplog
):
    """The directory looks sound: only the engine can find out that it is not."""
    async with echo_pool(2, weights_dir, sockets) as pool:
        await until(all_ready(pool))
        sync = WeightSync(table, pool, interval_s=0.02)
        table.newest = weights_at(sockets / "v4", 4)
        await synced(sync, pool, 4)
        table.newest = weights_at(sockets / "unfit", 5)
        task = asyncio.create_task(sync.run())
        await until(lambda: "version 5 is skipped: failed 2 times" in caplog.text)
        await until(all_ready(pool))
        assert {r.version for r in pool.replicas} == {4}
        table.newest = weights_at(sockets / "v6", 6)
        await until(lambda: {r.version for r in pool.replicas} == {6})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.process
async def test_a_replica_killed_during_the_update_comes_back_with_the_newest_weights(weights_dir, sockets, table):
    async with echo_pool(2, weights_dir, sockets) as pool:
        await until(all_ready(pool))
        sync = WeightSync(table, pool, interval_s=0.02)
        table.newest = weights_at(sockets / "v9", 9)
        os.kill(pid_of(pool, 0), signal.SIGKILL)
        await synced(sync, pool, 9)
        assert pool.replicas[0].restarts == 1


@pytest.mark.process
async def test_replicas_start_with_the_newest_weights_when_their_own_were_deleted(weights_dir, sockets, table):
    async with echo_pool(1, weights_dir, sockets) as pool:
        sync = WeightSync(table, pool, interval_s=0.02)
        shutil.rmtree(weights_dir)
        table.newest = weights_at(sockets / "v9", 9)
        os.kill(pid_of(pool, 0), signal.SIGKILL)
        await synced(sync, pool, 9)


@pytest.mark.process
async def test_a_database_that_is_away_is_asked_again(weights_dir, sockets, caplog):
    answers: list[Weights | DataError | None] = [
        DataError("gone"),
        DataError("gone"),
        None,
        weights_at(sockets / "a", 7),
    ]

    def look_up() -> Weights | None:
        answer = answers.pop(0)
        if isinstance(answer, DataError):
            raise answer
        return answer

    async with echo_pool(1, weights_dir, sockets) as pool:
        sync = WeightSync(look_up, pool)
        assert [await update_some(sync) for _ in range(4)] == [0, 0, 0, 1]
        assert caplog.text.count("will go on trying") == 1


@pytest.mark.train
async def test_weights_of_another_shape_are_skipped_before_any_engine_sees_them(
    model_dir, sockets, table, tmp_path, caplog
):
    wider = TinyModelConfig(hidden_size=64, layers=2, intermediate_size=64, vision_hidden_size=32, vision_layers=1)
    other = build_tiny_model(tmp_path / "wider", seed=1, config=wider)
    assert "does not fit the model" in why_unfit(other, model_dir)
    assert why_unfit(model_dir, model_dir) == why_unfit(model_dir, tmp_path / "none") == ""
    async with echo_pool(1, model_dir, sockets) as pool:
        sync = WeightSync(table, pool)
        table.newest = Weights(str(other), 4)
        assert await update_some(sync) == 0 and sync.failed == 0
        assert "have other shapes" in sync.skipped[table.newest] and all_ready(pool)()


@pytest.mark.process
async def test_several_are_updated_at_a_time_once_the_version_has_proved_itself(weights_dir, sockets, table):
    async with echo_pool(5, weights_dir, sockets, updates_at_once=2) as pool:
        await until(all_ready(pool))
        sync = WeightSync(table, pool)
        table.newest = weights_at(sockets / "v4", 4)
        assert [await update_some(sync) for _ in range(4)] == [1, 2, 2, 0]
        assert {replica.verified for replica in pool.replicas} == {4}
