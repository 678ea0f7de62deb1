from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import sqlalchemy as sa
from echo_engine import EchoEngine
from pool_builders import until
from service_parts import CLICK, TASKS, config_of, groups_of

from dart_agent.engines.base.engine import Generation, Prompt, Sampling
from dart_agent.engines.remote.engine_server import EngineServer
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.core.errors import ClusterError, UnknownTaskError
from dart_gym.core.outcomes import TerminalState
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_train.core.metrics_log import MetricsLog, read_metrics
from dart_train.core.train_errors import DatabaseGoneError
from dart_train.data.insight import serving
from dart_train.data.manager.data_manager import DataManager
from dart_train.data.store import schema
from dart_train.rollout.fleet.replica import ReplicaState, Weights
from dart_train.rollout.service.rollout_service import RolloutService

DONE, STEP_LIMIT = TerminalState.DONE, TerminalState.STEP_LIMIT


@pytest_asyncio.fixture
async def echo_url(sockets: Path) -> AsyncIterator[str]:
    """An engine that always clicks at the same place."""
    engine = EchoEngine("echo", "", 0, 0.001, CLICK)
    async with EngineServer(engine).listening(f"ws+unix://{sockets / 'echo.sock'}") as url:
        yield url


async def test_plays_its_budget_in_complete_groups_and_records_what_was_sampled(
    cluster_url, echo_url, data, make_policy, tmp_path
):
    config = config_of(echo_url, budget_rollouts=64, metrics_interval_s=0.2)
    metrics = MetricsLog(tmp_path / "metrics" / "rollout.jsonl")
    service = RolloutService(
        config, data, url=cluster_url, weights=Weights("", 0), make_policy=make_policy, metrics=metrics
    )
    summary = await service.run()
    assert summary.rollouts == 64 and summary.lost == 0 and summary.actions >= 64
    groups = groups_of(data)
    assert sorted(map(len, groups.values())) == [4] * 16
    for members in groups.values():
        assert len({(t.task_id, t.seed, t.instruction) for t in members}) == 1
        assert all(t.seed >= FIRST_TRAINING_SEED and t.terminal in (DONE, STEP_LIMIT) for t in members)
        assert all(t.score in (0.0, 1.0) and t.task_hash and t.ended_at > 0 for t in members)
        assert all(set(t.timings) >= {"reset", "step", "generate", "engine", "wire"} for t in members)
        for step in (step for t in members for step in t.steps):
            assert step.text == CLICK and step.engine == "echo" and len(step.logprobs) == len(step.response_ids) == 4
            assert set(step.response_ids) <= set(step.prompt_ids) and step.actions[0]["kind"] == "click"
            assert data.load_image(step.image_hashes[0]).shape == (224, 168, 3)
    shares = Counter(key.split("@")[0] for key in groups)
    assert set(shares) == set(TASKS) and max(shares.values()) - min(shares.values()) <= 4
    assert data.ready()[0] == 16
    metrics.close()
    lines = list(read_metrics(metrics.path))
    assert lines[-1]["rollouts"] == 64 and lines[-1]["unrecorded"] == 0
    assert set(lines[-1]["success"]) == set(TASKS) and lines[-1]["engines"][0]["requests"] >= 64
    assert any(0 < line["env_utilisation"] <= 1 for line in lines)


async def test_a_second_life_continues_the_count(cluster_url, echo_url, data, make_policy):
    for budget, expected in ((10, 8), (20, 20)):
        config = config_of(echo_url, budget_rollouts=budget)
        service = RolloutService(config, data, url=cluster_url, weights=Weights("", 0), make_policy=make_policy)
        assert (await service.run()).rollouts == expected
    groups = groups_of(data)
    assert sorted(map(len, groups.values())) == [4] * 5
    assert len({(members[0].task_id, members[0].seed) for members in groups.values()}) == 5


async def test_responses_without_an_action_are_recorded_as_parse_errors(cluster_url, sockets, data, make_policy):
    engine = EchoEngine("echo", "", 0, 0.001, "I do not know.")
    async with EngineServer(engine).listening(f"ws+unix://{sockets / 'dumb.sock'}") as url:
        config = config_of(url, budget_rollouts=8)
        service = RolloutService(config, data, url=cluster_url, weights=Weights("", 0), make_policy=make_policy)
        summary = await service.run()
    assert summary.terminals == {"parse_error": 8} and summary.rollouts == 8
    for trajectory in data.trajectories():
        assert trajectory.terminal is TerminalState.PARSE_ERROR and trajectory.score == 0.0
        assert len(trajectory.steps) == 1 and trajectory.steps[0].actions == ()


class HeldEngine(EchoEngine):
    """Answers so many requests, and the others when it is let go."""

    def __init__(self, answers: int) -> None:
        super().__init__("echo", "", 0, 0.001, CLICK)
        self.answers, self.held, self.go = answers, asyncio.Event(), asyncio.Event()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        self.answers -= 1
        if self.answers < 0:
            self.held.set()
            await self.go.wait()
        return await super().generate(prompt, sampling)


async def test_survives_the_loss_of_the_cluster(sockets, data, make_policy):
    url = f"ws+unix://{sockets / 'gym.sock'}"
    settings = ServerSettings(listen=url, desktops=4, drain_s=0.1)
    engine = HeldEngine(30)  # so the cluster goes away amid episodes, however fast they are
    async with EngineServer(engine).listening(f"ws+unix://{sockets / 'echo.sock'}") as engine_url:
        config = config_of(engine_url, budget_rollouts=60)
        service = RolloutService(config, data, url=url, weights=Weights("", 0), make_policy=make_policy)
        server = ClusterServer(settings)
        await server.start()
        run = asyncio.create_task(service.run())
        await asyncio.wait_for(engine.held.wait(), 60)
        await server.stop()
        engine.go.set()
        await asyncio.sleep(0.3)  # the time that the cluster is away
        assert not run.done()
        async with ClusterServer(settings):
            summary = await run
    assert summary.rollouts == 60 and summary.given_up == 0
    assert sorted(len([t for t in g if t.terminal.trainable]) for g in groups_of(data).values()) == [4] * 15


async def test_gives_up_on_a_cluster_that_stays_away(sockets, echo_url, data, make_policy):
    config = config_of(echo_url, unavailable_timeout_s=0.1)
    url = f"ws+unix://{sockets / 'nobody.sock'}"
    service = RolloutService(config, data, url=url, weights=Weights("", 0), make_policy=make_policy)
    with pytest.raises(ClusterError, match="is `dart-gym serve` running"):
        await service.run()


class FlakyData(DataManager):
    """A data manager whose database is away for some calls."""

    away = 3

    def keep(self, *args, **kwargs):
        if self.away:
            self.away -= 1
            raise DatabaseGoneError("the database is away")
        return super().keep(*args, **kwargs)


def flaky(data: DataManager, away: int) -> FlakyData:
    manager = FlakyData(data.store, data.files, data.run_id, data.config)
    manager.away = away
    return manager


async def test_waits_for_a_database_that_is_away(cluster_url, echo_url, data, make_policy, caplog):
    config = config_of(echo_url, budget_rollouts=32, max_unrecorded=8)
    service = RolloutService(config, flaky(data, 3), url=cluster_url, weights=Weights("", 0), make_policy=make_policy)
    most_waiting = 0

    async def watch() -> None:
        nonlocal most_waiting
        while True:
            most_waiting = max(most_waiting, service.unrecorded)
            await asyncio.sleep(0.005)

    watcher = asyncio.create_task(watch())
    summary = await service.run()
    watcher.cancel()
    assert summary.rollouts == 32 and sum(map(len, groups_of(data).values())) == 32
    assert caplog.text.count("will go on trying") == caplog.text.count("the database is back") == 1
    assert most_waiting <= 8 + config.workers


async def test_ends_with_the_error_when_the_database_stays_away(cluster_url, echo_url, data, make_policy):
    config = config_of(echo_url, unavailable_timeout_s=0.3)
    service = RolloutService(
        config, flaky(data, 10_000), url=cluster_url, weights=Weights("", 0), make_policy=make_policy
    )
    with pytest.raises(DatabaseGoneError):
        await service.run()


async def test_an_unknown_task_ends_the_service_at_once(cluster_url, echo_url, data, make_policy):
    config = config_of(echo_url, tasks=("fake/click-buton",))
    service = RolloutService(config, data, url=cluster_url, weights=Weights("", 0), make_policy=make_policy)
    with pytest.raises(UnknownTaskError, match="click-button"):
        await service.run()


async def test_stops_within_seconds_and_leaves_no_thread(cluster_url, echo_url, data, make_policy):
    service = RolloutService(
        config_of(echo_url), data, url=cluster_url, weights=Weights("", 0), make_policy=make_policy
    )
    run = asyncio.create_task(service.run())
    await until(lambda: service.scheduler.completed > 10)
    service.stop()
    async with asyncio.timeout(10):
        summary = await run
    assert sum(map(len, groups_of(data).values())) == summary.rollouts
    assert not [thread for thread in threading.enumerate() if thread.name == "recorder"]


async def test_pauses_while_the_trainer_is_behind(cluster_url, echo_url, data, make_policy):
    behind = data.config.model_copy(update={"batch_groups": 2, "batches_ahead": 1.0})
    manager = DataManager(data.store, data.files, data.run_id, behind)
    service = RolloutService(
        config_of(echo_url), manager, url=cluster_url, weights=Weights("", 0), make_policy=make_policy
    )
    run = asyncio.create_task(service.run())
    await until(lambda: manager.ready()[1] >= 8 and service.scheduler.running == 0)
    waiting = service.scheduler.completed
    leased = manager.lease(100, "trainer", at_least=1)
    assert leased is not None
    leased.commit(1)
    await until(lambda: service.scheduler.completed > waiting)
    service.stop()
    await run


async def test_members_of_a_group_that_expired_are_not_played(cluster_url, echo_url, data, make_policy, tmp_path):
    """200 members of one group: the first are recorded, then newer weights leave the group behind."""
    fresh = data.config.model_copy(update={"max_staleness": 0, "group_size": 200, "batches_ahead": None})
    manager = DataManager(data.store, data.files, data.run_id, fresh)
    config = config_of(echo_url, group_size=200, workers=2, tasks=("fake/click-button",), budget_rollouts=200)
    service = RolloutService(config, manager, url=cluster_url, weights=Weights("", 0), make_policy=make_policy)
    run = asyncio.create_task(service.run())
    await until(lambda: manager.counts()["recorded"] >= 2)
    (tmp_path / "v5").mkdir()
    manager.publish(5, tmp_path / "v5")
    manager.sweep()
    await until(lambda: service.scheduler.given_up > 100)
    service.stop()
    await run
    assert manager.counts()["expired"] >= 2 and len(groups_of(manager)) == 1


def served(data: DataManager) -> dict[str, int]:
    """Which version each replica serves, as the data manager knows it."""
    return data.read(serving.serving_now)


@pytest.mark.slow
@pytest.mark.train
@pytest.mark.e2e
async def test_with_a_model_updates_weights_and_survives_kill_of_a_replica(
    cluster_url, data, make_policy, model_dir, tmp_path
):
    data.publish(1, model_dir, "initial")
    config = config_of(tasks=("fake/click-button",))
    service = RolloutService(config, data, url=cluster_url, weights=Weights(str(model_dir), 1), make_policy=make_policy)
    run = asyncio.create_task(service.run())
    await until(lambda: service.scheduler.completed >= 20)
    pool = service.pool
    await until(lambda: all(replica.state is ReplicaState.READY for replica in pool.replicas))
    victim = pool.replicas[0].process
    assert victim is not None
    names = {f"{replica.name}@{socket.gethostname()}" for replica in pool.replicas}
    await until(lambda: served(data) == dict.fromkeys(names, 1))
    os.kill(victim.pid, signal.SIGKILL)
    data.publish(2, shutil.copytree(model_dir, tmp_path / "v2"), "training")
    await until(lambda: all(r.state is ReplicaState.READY and r.version == 2 for r in pool.replicas))
    await until(lambda: served(data) == dict.fromkeys(names, 2))
    assert [len(life.replicas) for life in data.status().versions] == [len(names), 0]
    updated = service.scheduler.completed
    await until(lambda: service.scheduler.completed >= updated + 2 * config.workers)
    service.stop()
    summary = await run
    assert summary.given_up == 0 and "model_error" not in summary.terminals
    versions = Counter(t.newest_version for members in groups_of(data).values() for t in members)
    assert set(versions) == {1, 2} and versions.total() == summary.rollouts
    assert pool.replicas[0].process is not victim
    assert served(data) == {}, "the service has ended"
    history = sa.select(schema.serving.c.replica, schema.serving.c.version).order_by(schema.serving.c.id)
    rows = data.store.read(lambda c: [tuple(row) for row in c.execute(history)])
    assert {(name, version) for name in names for version in (1, 2)} <= set(rows)
