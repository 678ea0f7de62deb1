"""What goes wrong around a database: away and back, full, read-only, two of one id, clocks that differ."""

from __future__ import annotations

import signal
import threading
import time

import pytest
import sqlalchemy as sa
from data_builders import RUN, SMALL, Clock, make_trajectory, open_manager, record_group

from dart_train.core.train_errors import (
    DatabaseBusyError,
    DatabaseGoneError,
    DatabaseRefusedError,
    DuplicateTrajectoryError,
    ReadOnlyError,
)
from dart_train.data import DataManager, RolloutState
from dart_train.data.store import prepared_statements
from dart_train.data.store.schema import rollout_meta, rollout_run
from dart_train.data.store.sql_store import Store, now
from tests.helpers.mariadb import MariaDB

# Two of one id


def test_two_rollouts_with_one_id_are_told_apart(database, data):
    first = make_trajectory("t1", reward=0.0)
    assert data.record(first) is RolloutState.RECORDED
    with pytest.raises(DuplicateTrajectoryError, match="another trajectory with the id 't1'.*the first one is kept"):
        data.record(make_trajectory("t1", reward=1.0))
    assert data.record(first) is RolloutState.RECORDED
    assert data.load_trajectory("t1") == first
    assert data.census().total == 1


def test_two_rollouts_at_once_with_one_id_leave_one(database, tmp_path):
    outcomes: list[object] = []
    managers = [open_manager(tmp_path) for _ in range(4)]
    barrier = threading.Barrier(len(managers))

    def record(index: int) -> None:
        barrier.wait(30)
        try:
            outcomes.append(managers[index].record(make_trajectory("t1", reward=float(index % 2), seed=index)))
        except DuplicateTrajectoryError as error:
            outcomes.append(type(error))

    threads = [threading.Thread(target=record, args=(index,)) for index in range(len(managers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count = sa.select(sa.func.count()).select_from(rollout_run)
    assert managers[0].store.read(lambda c: c.execute(count).scalar()) == 1
    assert outcomes.count(DuplicateTrajectoryError) == len(managers) - 1
    for manager in managers:
        manager.close()


@pytest.mark.mysql
def test_ids_that_differ_in_case_only_are_refused_where_the_published_table_cannot_hold_them(mysql_url, tmp_path):
    with DataManager.open(mysql_url, tmp_path, "case", config=SMALL) as data:
        data.record(make_trajectory("rollout-a", run_id="case"))
        with pytest.raises(DuplicateTrajectoryError, match="upper from lower case"):
            data.record(make_trajectory("Rollout-A", run_id="case"))
        assert data.census().total == 1


# Clocks


def test_a_machine_whose_clock_is_ahead_is_marked_and_dated_at_the_recording(data, clock):
    data.record(make_trajectory("ahead", ended_at=clock.now + 3600))
    data.record(make_trajectory("right", ended_at=clock.now + 0.5))
    rows = data.store.read(lambda c: {row.trajectory_id: row for row in c.execute(sa.select(rollout_meta))})
    assert (rows["ahead"].created_at, rows["ahead"].recorded_at, rows["ahead"].clock_skew_s) == (1000.0, 1000.0, 3600.0)
    assert (rows["right"].created_at, rows["right"].clock_skew_s) == (1000.5, None)


def test_leases_go_by_the_databases_clock(database, tmp_path, monkeypatch):
    """A machine whose own clock is a day ahead takes nobody's lease away."""
    with open_manager(tmp_path) as mine, open_manager(tmp_path) as theirs:
        record_group(mine, "g")
        leased = mine.lease(1, "me", ttl_s=300)
        monkeypatch.setattr(time, "time", Clock(time.time() + 86400))
        assert theirs.lease(1, "they") is None
        assert theirs.sweep().returned_leases == 0
        leased.commit(1)


def test_the_databases_clock_is_now(database, tmp_path):
    with open_manager(tmp_path) as data:
        before = time.time()
        said = data.store.read(now)
        assert before - 0.01 <= said <= time.time() + 0.01


# The database away, and back


@pytest.mark.mysql
@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_server_that_comes_back_in_time_is_waited_for(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("dart_train.data.store.sql_store.SAY_AWAY_S", 0.0)
    with MariaDB() as server:
        url = server.new_url()
        with DataManager.open(url, tmp_path, RUN, config=SMALL, unavailable_timeout_s=200.0) as data:
            record_group(data, "g0")
            leased = data.lease(1, "me")
            server.stop(signal.SIGKILL)
            worker = threading.Thread(target=lambda: (record_group(data, "g1"), leased.commit(1)))
            worker.start()
            server.start()  # it recovers from its log
            worker.join()
            assert data.counts()["trained"] == data.counts()["recorded"] == 2
    told = [record.getMessage() for record in caplog.records]
    assert any("is away, will go on trying for 200 s" in line for line in told)
    assert any("is back after" in line for line in told)


@pytest.mark.mysql
@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_server_that_stays_away_is_said_and_loses_nothing(tmp_path):
    with MariaDB() as server:
        url = server.new_url()
        with DataManager.open(url, tmp_path, RUN, config=SMALL) as data:
            record_group(data, "g0")
            server.stop()
            data.store.unavailable_timeout_s = 0.3
            with pytest.raises(DatabaseGoneError, match="cannot be reached .*check that it exists and is running"):
                data.record(make_trajectory("late", "g1"))
            with pytest.raises(DatabaseGoneError):
                data.lease(1, "me")
            server.start()
            assert data.record(make_trajectory("late", "g1")) is RolloutState.RECORDED
            assert data.census().total == 3


@pytest.mark.mysql
def test_a_connection_that_the_server_ends_costs_nothing(mysql_url, mariadb, tmp_path, monkeypatch):
    """Each statement of the work finds its connection killed once; the work is done all the same, once."""
    with DataManager.open(mysql_url, tmp_path, "killed", config=SMALL) as data:
        killed: list[int] = []
        execute = prepared_statements.execute

        def kill(connection, text, parameters):
            if text.startswith("INSERT INTO rollout_step") and not killed:
                killed.append(connection.connection.dbapi_connection.thread_id())
                mariadb.execute(f"KILL {killed[0]}")
            return execute(connection, text, parameters)

        monkeypatch.setattr(prepared_statements, "execute", kill)
        assert data.record(make_trajectory("t", run_id="killed")) is RolloutState.RECORDED
        assert len(killed) == 1
        assert data.census().total == 1


@pytest.mark.mysql
def test_a_wrong_password_or_name_is_said_at_once(mariadb):
    started = time.monotonic()
    with pytest.raises(DatabaseGoneError, match="cannot be reached"):
        Store(f"mysql+pymysql://root@localhost/nothing?unix_socket={mariadb.socket}")
    with pytest.raises(DatabaseRefusedError, match="nobody") as caught:
        Store(f"mysql+pymysql://nobody:secret@localhost/nothing?unix_socket={mariadb.socket}")
    assert "secret" not in str(caught.value)
    assert time.monotonic() - started < 10


# Full and read-only


@pytest.mark.mysql
def test_a_read_only_server_is_said(mysql_url, mariadb, tmp_path):
    user = "CREATE OR REPLACE USER reader@localhost IDENTIFIED BY ''"
    mariadb.execute(user)
    mariadb.execute("GRANT ALL ON *.* TO reader@localhost")
    mariadb.execute("REVOKE SUPER, READ_ONLY ADMIN ON *.* FROM reader@localhost")
    with DataManager.open(mysql_url.replace("root@", "reader@"), tmp_path, RUN, config=SMALL) as data:
        mariadb.execute("SET GLOBAL read_only = 1")
        try:
            with pytest.raises(ReadOnlyError, match="cannot be written .*read-only"):
                data.record(make_trajectory("t"))
        finally:
            mariadb.execute("SET GLOBAL read_only = 0")
        assert data.record(make_trajectory("t")) is RolloutState.RECORDED


@pytest.mark.process
def test_a_read_only_disk_is_said(sandboxed, tmp_path):
    with open_manager(tmp_path) as data:
        record_group(data, "g")
    program = (
        "import sys; from pathlib import Path\n"
        "from data_builders import open_manager, make_trajectory\n"
        "from dart_train.core.train_errors import ReadOnlyError\n"
        "try:\n    open_manager(Path(sys.argv[1])).record(make_trajectory('t'))\n"
        "except ReadOnlyError as error: print('said:', error)\n"
    )
    assert "said:" in sandboxed(program, "--ro-bind", str(tmp_path), str(tmp_path), argument=str(tmp_path))


@pytest.mark.process
def test_a_full_disk_is_said_and_recording_goes_on_when_there_is_room(sandboxed, tmp_path):
    (tmp_path / "small").mkdir()
    program = (
        "import os, sys; from pathlib import Path\n"
        "from data_builders import open_manager, make_trajectory, record_group\n"
        "from dart_train.core.train_errors import DiskFullError\n"
        "folder = Path(sys.argv[1]); data = open_manager(folder)\n"
        "record_group(data, 'g0')\n"
        "room = os.statvfs(folder); (folder / 'filler').write_bytes(bytes(room.f_bavail * room.f_frsize - 20000))\n"
        "try:\n    for index in range(2000): data.record(make_trajectory(f't{index}', f'h{index}'))\n"
        "except DiskFullError as error: print('said:', error)\n"
        "before = data.census().total; (folder / 'filler').unlink(); record_group(data, 'g1')\n"
        "assert data.census().total == before + 2; print('went on')\n"
    )
    said = sandboxed(program, "--size", "2000000", "--tmpfs", str(tmp_path / "small"), argument=str(tmp_path / "small"))
    assert "said:" in said
    assert "went on" in said


@pytest.mark.mysql
def test_all_connections_in_use_is_said(mysql_url):
    store = Store(mysql_url, busy_timeout_s=1.0)
    held = [store.writer.connect() for _ in range(32)]
    with pytest.raises(DatabaseBusyError, match="all connections are in use"):
        store.write(lambda connection: None)
    for connection in held:
        connection.close()
    store.close()
