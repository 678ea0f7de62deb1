"""What the rollout service needs is taken away: killed, locked, moved. It waits, says so, and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pool_builders import until
from service_parts import assert_whole, cluster, config_of, echo_engine, seen

from dart_agent.engines.base.engine import EngineError
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.files.trajectory_files import TrajectoryFiles
from dart_train.data.manager.data_manager import DataManager
from dart_train.data.store.sql_store import Store
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.service.rollout_service import RolloutService
from tests.helpers.mariadb import MariaDB

CURATION = CurationConfig(group_size=4, drop_no_signal=False, batches_ahead=None, max_staleness=None)


@contextlib.asynccontextmanager
async def playing(service: RolloutService) -> AsyncIterator[asyncio.Task]:
    """The service as a task, some rollouts after its start."""
    run = asyncio.create_task(service.run())
    try:
        await until(lambda: run.done() or service.scheduler.completed >= 8)
        assert not run.done()
        yield run
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


def start_service(data, make_policy, sockets: Path, **settings) -> RolloutService:
    """Against `gym.sock` and `echo.sock`, with a budget that is far away until it is set."""
    config = config_of(f"ws+unix://{sockets / 'echo.sock'}", **settings)
    url = f"ws+unix://{sockets / 'gym.sock'}"
    return RolloutService(config, data, url=url, weights=Weights("", 0), make_policy=make_policy)


def spend(service: RolloutService, more: int = 24) -> int:
    """Let the service end after some rollouts more; return how many that makes."""
    budget = (service.scheduler.completed + service.scheduler.unfinished + more) // 4 * 4
    service.scheduler.budget = budget
    return budget


@pytest.mark.thorough
@pytest.mark.process
async def test_the_cluster_is_killed_and_comes_back(sockets, data, make_policy, weights_dir, caplog):
    gym, echo = f"ws+unix://{sockets / 'gym.sock'}", f"ws+unix://{sockets / 'echo.sock'}"
    with cluster(gym) as server, echo_engine(echo, weights_dir):
        service = start_service(data, make_policy, sockets)
        client = service.client
        client.settings = type(client.settings)(reconnect_s=0.3)  # so that the loss is noticed soon
        async with playing(service) as run:
            caplog.clear()  # it may have waited for the cluster to come up
            server.kill()
            await until(lambda: run.done() or service.dependencies.cluster.away)
            assert not run.done() and "dart-gym serve" in service.figures()["unavailable"]["cluster"]["reason"]
            server.start()
            await until(lambda: run.done() or not service.dependencies.cluster.away)
            budget = spend(service)
            await run
        assert_whole(data, service, budget)
        assert seen(lambda: caplog.text, "the environment cluster is away", "the environment cluster is back")


@pytest.mark.process
async def test_all_engines_are_killed_and_come_back(sockets, data, make_policy, weights_dir, cluster_url, caplog):
    with echo_engine(f"ws+unix://{sockets / 'echo.sock'}", weights_dir) as engine:
        service = start_service(data, make_policy, sockets)
        async with playing(service) as run:
            caplog.clear()
            engine.kill()
            await until(lambda: run.done() or service.dependencies.engines.away)
            assert not run.done()
            engine.start()
            await until(lambda: run.done() or not service.dependencies.engines.away)
            budget = spend(service)
            await run
        assert_whole(data, service, budget)
        assert "model_error" not in service.summary().terminals and service.scheduler.lost == 0
        assert seen(lambda: caplog.text, "every engine is away", "every engine is back")


@pytest.mark.process
async def test_engines_that_stay_away_end_the_service(sockets, data, make_policy, weights_dir, cluster_url):
    with echo_engine(f"ws+unix://{sockets / 'echo.sock'}", weights_dir) as engine:
        service = start_service(data, make_policy, sockets, unavailable_timeout_s=1.0)
        async with playing(service) as run:
            engine.kill()
            with pytest.raises(EngineError, match="no engine replica for 1 s"):
                await asyncio.wait_for(run, 60)


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.mysql
async def test_a_database_server_is_killed_and_comes_back(
    sockets, tmp_path, make_policy, weights_dir, cluster_url, caplog
):
    with MariaDB() as server, echo_engine(f"ws+unix://{sockets / 'echo.sock'}", weights_dir):
        store = Store(server.new_url(), unavailable_timeout_s=0.2, busy_timeout_s=2.0)
        data = DataManager(store, TrajectoryFiles(tmp_path / "data"), "run", CURATION)
        with contextlib.closing(data):
            service = start_service(data, make_policy, sockets)
            async with playing(service) as run:
                await asyncio.to_thread(server.stop, how=9)
                await until(lambda: run.done() or (service.dependencies.database.away and service.unrecorded >= 4))
                assert not run.done()  # what has ended waits
                await asyncio.to_thread(server.start)
                await until(lambda: run.done() or not service.dependencies.database.away)
                budget = spend(service)
                await run
            assert_whole(data, service, budget)
        assert seen(lambda: caplog.text, "the database is away", "the database is back")


LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.process
async def test_a_locked_sqlite_file_is_waited_for(sockets, tmp_path, make_policy, weights_dir, cluster_url, caplog):
    database = tmp_path / "data" / "dart.sqlite"
    store = Store(f"sqlite:///{database}", busy_timeout_s=0.2)
    data = DataManager(store, TrajectoryFiles(tmp_path / "data"), "run", CURATION)
    with contextlib.closing(data), echo_engine(f"ws+unix://{sockets / 'echo.sock'}", weights_dir):
        service = start_service(data, make_policy, sockets, max_unrecorded=8)
        async with playing(service) as run:
            pipe = subprocess.PIPE
            with subprocess.Popen([sys.executable, "-c", LOCK, str(database)], stdin=pipe, stdout=pipe) as other:
                assert await asyncio.to_thread(other.stdout.readline) == b"locked\n"
                await until(lambda: run.done() or (service.dependencies.database.away and service.unrecorded >= 8))
                await until(lambda: run.done() or service.scheduler.running == 0)  # no more is begun than may wait
                assert not run.done() and service.unrecorded <= 8 + service.config.workers
            await until(lambda: run.done() or not service.dependencies.database.away)
            budget = spend(service)
            await run
        assert_whole(data, service, budget)
        assert seen(lambda: caplog.text, "the database is away", "the database is back")


@pytest.mark.process
async def test_a_database_file_that_is_moved_away_is_not_written_to(
    sockets, data, tmp_path, make_policy, weights_dir, cluster_url
):
    folder = tmp_path / "data"
    with echo_engine(f"ws+unix://{sockets / 'echo.sock'}", weights_dir):
        service = start_service(data, make_policy, sockets)
        async with playing(service) as run:
            (folder / "dart.sqlite").rename(folder / "away")
            await until(lambda: run.done() or (service.dependencies.database.away and service.unrecorded >= 4))
            assert not run.done()
            os.replace(folder / "away", folder / "dart.sqlite")
            await until(lambda: run.done() or not service.dependencies.database.away)
            budget = spend(service)
            await run
        assert_whole(data, service, budget)
        with sqlite3.connect(folder / "dart.sqlite") as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
