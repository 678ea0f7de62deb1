from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import sqlalchemy as sa
from data_builders import CONTEXT, RUN, SMALL, make_trajectory, url_of

from dart_train.core.train_errors import (
    CorruptDataError,
    DatabaseBusyError,
    DatabaseGoneError,
    DataError,
    DiskFullError,
    SchemaError,
)
from dart_train.data.manager.data_manager import DataManager
from dart_train.data.store import schema
from dart_train.data.store.sql_store import Store


def test_a_database_of_something_else_is_refused(new_url):
    engine = sa.create_engine(new_url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE run_state (other TEXT)"))
    engine.dispose()
    with pytest.raises(SchemaError, match="lacks a table or column"):
        Store(new_url)


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "db.sqlite").write_bytes(b"something else entirely" * 100)
    with pytest.raises(CorruptDataError, match="not a database"):
        Store(f"sqlite:///{tmp_path}/db.sqlite")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "nonsense"])
def test_urls_that_cannot_work_are_refused(url):
    with pytest.raises(DataError, match=r"sqlite:////path/db\.sqlite"):
        Store(url)


def test_a_full_database_is_said(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/db.sqlite")

    def fill(connection: sa.Connection) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        for index in range(1000):
            row = {"run_id": "r", "name": str(index), "value": "x" * 1000}
            connection.execute(schema.run_state.insert(), row)

    with pytest.raises(DiskFullError, match="free some space"):
        store.write(fill)
    store.close()


def test_a_lock_held_too_long_is_said(database, tmp_path):
    url = url_of(tmp_path)
    first, second = Store(url), Store(url, busy_timeout_s=0.05)
    inside, leave = threading.Event(), threading.Event()
    insert = schema.run_state.insert().values(run_id="r", name="n", value=1)

    def hold(connection: sa.Connection) -> None:
        connection.execute(insert)
        inside.set()
        leave.wait(30)

    thread = threading.Thread(target=first.write, args=(hold,))
    thread.start()
    assert inside.wait(10)
    try:
        with pytest.raises(DatabaseBusyError, match="look for a stuck process"):
            second.write(lambda c: c.execute(insert))
        assert second.read(lambda c: c.execute(sa.select(sa.func.count()).select_from(schema.lease)).scalar()) == 0
    finally:
        leave.set()
        thread.join()
    first.close()
    second.close()


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_database_that_went_away_is_noticed(data, tmp_path, how):
    data.record(make_trajectory("t1"))
    data.sweep()
    database = tmp_path / "data" / "dart.sqlite"
    database.unlink()
    if how == "replaced":
        database.write_bytes(b"")
    with pytest.raises(DatabaseGoneError, match="deleted or replaced"):
        data.sweep()


@pytest.mark.mysql
def test_a_connection_that_the_server_closed_is_replaced_without_notice(mariadb, mysql_url):
    """No transaction asks beforehand whether its connection is alive: one that fails so is begun again."""
    store = Store(mysql_url)

    def number(connection: sa.Connection) -> int:
        return connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar()

    for run in (store.read, store.write):
        mariadb.execute(f"KILL {(before := run(number))}")
        assert run(number) != before
    store.close()


@pytest.mark.mysql
def test_a_unix_socket_is_not_encrypted(mysql_url):
    """Reading the system's certificates would take a connection of each thread of each process tens of milliseconds."""
    cipher = "SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'Ssl_cipher'"
    store = Store(mysql_url)
    with store.engine.connect() as connection:
        assert not connection.connection.dbapi_connection.ssl
        assert connection.exec_driver_sql(cipher).scalar() == ""
    store.close()


def test_a_connection_begins_at_the_address_that_the_url_binds_it_to():
    with pytest.raises(DatabaseGoneError, match="Cannot assign requested address"):
        Store("mysql+pymysql://me@127.0.0.1:9/db?bind_address=192.0.2.1", unavailable_timeout_s=0.1)


def test_a_failed_transaction_leaves_nothing(database, tmp_path):
    store = Store(url_of(tmp_path))

    def work(connection: sa.Connection) -> None:
        connection.execute(schema.run_state.insert().values(run_id="r", name="n", value=1))
        raise KeyError("stop")

    with pytest.raises(KeyError):
        store.write(work)
    with pytest.raises(DataError, match="UNIQUE|Duplicate entry"):
        for _ in range(2):
            store.write(lambda c: c.execute(schema.run_state.insert().values(run_id="r", name="m", value=1)))
    names = store.read(
        lambda c: set(c.execute(sa.select(schema.run_state.c.name).where(schema.run_state.c.run_id == "r")).scalars())
    )
    assert names == {"m"}
    store.close()


def _open(url, folder, barrier, index) -> None:
    barrier.wait(30)
    with DataManager.open(url, folder, RUN, config=SMALL) as data:
        data.record(make_trajectory(f"t{index}", f"g{index}"))


@pytest.mark.process
@pytest.mark.usefixtures("forkserver")
def test_processes_may_open_a_new_run_at_the_same_moment(new_url, tmp_path):
    barrier = CONTEXT.Barrier(4)
    processes = [
        CONTEXT.Process(target=_open, args=(new_url, tmp_path, barrier, index), daemon=True) for index in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    with DataManager.open(new_url, tmp_path, RUN, config=SMALL) as data:
        assert data.census().total == 4


def test_runs_share_a_database_without_seeing_one_another(database, tmp_path):
    url = url_of(tmp_path)
    with (
        DataManager.open(url, tmp_path / "a", "a", config=SMALL) as first,
        DataManager.open(url, tmp_path / "b", "b", config=SMALL) as second,
    ):
        for index in range(2):
            first.record(make_trajectory(f"t{index}", reward=float(index), run_id="a"))
            second.record(make_trajectory(f"t{index}", reward=None, run_id="b"))
        assert (first.census().eligible, second.census().eligible) == (2, 0)
        assert second.lease(1, "me") is None
        assert first.lease(1, "me") is not None


@pytest.mark.process
def test_the_package_needs_no_torch():
    program = "import sys, dart_train.data, dart_train.data.maintenance.data_service; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
