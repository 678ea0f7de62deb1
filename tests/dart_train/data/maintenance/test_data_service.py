from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from data_builders import CONTEXT, RUN, make_trajectory, open_manager, publish, record_group, url_of

from dart_train.core.metrics_log import MetricsLog, read_metrics
from dart_train.core.train_errors import DatabaseGoneError
from dart_train.data.insight import statistics
from dart_train.data.maintenance.data_service import COLLECT_INTERVAL_S, DataService, run_data_service
from dart_train.data.maintenance.retention_plan import RetentionConfig
from dart_train.data.store.schema import task_state
from dart_train.data.store.sql_store import Store
from tests.helpers.waiting import wait_until


def _serve(folder: Path) -> None:
    with open_manager(folder) as data, contextlib.closing(MetricsLog(folder / "data.jsonl")) as metrics:
        run_data_service(DataService(data, metrics, workers=2, metrics_interval_s=0.05), sweep_interval_s=0.02)


@pytest.mark.process
@pytest.mark.usefixtures("forkserver")
def test_the_process_keeps_order_until_it_is_told_to_end(database, tmp_path):
    with open_manager(tmp_path) as data:
        publish(data, 0)
        record_group(data, "g0")
        record_group(data, "g1")
        data.lease(1, "dead", ttl_s=0.0)
        process = CONTEXT.Process(target=_serve, args=(tmp_path,), daemon=True)
        process.start()
        wait_until(lambda: data.counts()["leased"] == 0)
        publish(data, 9)
        wait_until(lambda: data.counts()["expired"] == 4)
        data.record(make_trajectory("last", "h", 1.0, version=9, ended_at=time.time()))
        os.kill(process.pid, signal.SIGTERM)
        process.join(30)
        assert process.exitcode == 0
        assert data.read(statistics.saved_task_stats)["fake/button"].rollouts == 5
    last = list(read_metrics(tmp_path / "data.jsonl"))[-1]
    assert (last["total"], last["stale"], last["unfinished"], last["eligible"]) == (5, 4, 1, 0)
    assert (last["newest_version"], last["returned_leases"]) == (9, 1)
    assert last["success_rate_by_task"] == {"fake/button": last["success_rate"]}
    assert last["actions_per_min"] == 5.0
    assert last["env_utilisation"] == pytest.approx(5.0 / 120.0, rel=1e-3)


def test_lines_come_at_their_interval(database, data, tmp_path, clock):
    metrics = MetricsLog(tmp_path / "data.jsonl")
    service = DataService(data, metrics, metrics_interval_s=1.0, clock=clock)
    for _ in range(10):
        service.turn()
        record_group(data, f"g{clock.now}")
        clock.now += 0.5
    metrics.close()
    lines = list(read_metrics(tmp_path / "data.jsonl"))
    assert [line["total"] for line in lines] == [0, 4, 8, 12, 16]
    assert lines[-1]["trajectories_per_s"] == 4.0


@pytest.mark.parametrize(("retention", "left"), [({}, 2), ({"max_age_days": 0.0}, 0)], ids=["no limit", "a limit"])
def test_what_is_not_kept_is_cleared_away_once_an_hour(database, data, clock, caplog, retention, left):
    caplog.set_level(logging.INFO)
    record_group(data, "g0")
    service = DataService(data, retention=RetentionConfig(**retention), clock=clock)
    data.lease(1, "trainer").commit(0)
    for _ in range(2):
        service.turn()
        assert len(list(data.files.stored_trajectories())) == 2, "the hour is not over"
        clock.now += COLLECT_INTERVAL_S / 2
    service.turn()
    if not left:
        wait_until(lambda: "cleared away 2 trajectories" in caplog.text)
    assert len(list(data.files.stored_trajectories())) == left


def test_a_lost_database_ends_the_service_after_its_time_limit(data, tmp_path, caplog):
    (tmp_path / "data" / "dart.sqlite").unlink()
    with pytest.raises(DatabaseGoneError):
        DataService(data, unavailable_timeout_s=0.2).run(threading.Event())
    assert caplog.text.count("the database is away, will go on trying for 0.2 s") == 1


def test_a_database_that_comes_back_is_swept_again(data, tmp_path, caplog):
    database, away, stop = tmp_path / "data" / "dart.sqlite", tmp_path / "away", threading.Event()
    database.rename(away)
    service = threading.Thread(target=DataService(data).run, args=(stop, 0.01))
    service.start()
    wait_until(lambda: "the database is away" in caplog.text)
    away.replace(database)
    wait_until(lambda: "the database is back" in caplog.text)
    stop.set()
    service.join(20)
    assert not service.is_alive()


def test_a_busy_database_costs_only_a_turn(database, tmp_path, caplog):
    with open_manager(tmp_path) as blocker, open_manager(tmp_path) as data:
        data.store.close()
        data.store = Store(url_of(tmp_path), busy_timeout_s=0.05)
        data.record(make_trajectory("t"))
        stop, inside, leave = threading.Event(), threading.Event(), threading.Event()

        def hold(connection) -> None:
            """Have the row that the service is going to write, for as long as the test says."""
            task = {"run_id": RUN, "task_id": "fake/button"}
            values = {"rollouts": 0, "window_size": 0, "last_rollout_id": 0, "updated_at": 0.0}
            connection.execute(task_state.insert().values(**task, **values))
            inside.set()
            leave.wait(20)
            connection.execute(task_state.delete())

        holder = threading.Thread(target=blocker.store.write, args=(hold,))
        holder.start()
        assert inside.wait(10)
        service = threading.Thread(target=DataService(data).run, args=(stop, 0.01))
        service.start()
        wait_until(lambda: "the database is away" in caplog.text)
        leave.set()
        holder.join()
        wait_until(
            lambda: (
                data.read(statistics.saved_task_stats)["fake/button"].rollouts == 1
                if data.read(statistics.saved_task_stats)
                else False
            )
        )
        stop.set()
        service.join(20)
        assert not service.is_alive()
