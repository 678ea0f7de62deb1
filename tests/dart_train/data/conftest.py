from __future__ import annotations

import multiprocessing.forkserver
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from data_builders import CONTEXT, URL_FILE, Clock, empty, open_manager

from dart_train.data import DataManager
from dart_train.data.store.sql_store import Store
from tests.helpers.mariadb import MariaDB


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """A server of the tests' own; a missing one is a failure, not a skipped test."""
    with MariaDB(options=("--innodb-flush-log-at-trx-commit=0", "--innodb-log-file-size=16M")) as server:
        yield server


@pytest.fixture(scope="session")
def shared_mysql_url(mariadb: MariaDB) -> str:
    """A database with the schema for tests that run one after the other (making tables takes seconds)."""
    url = mariadb.new_url()
    Store(url).close()
    return url


@pytest.fixture
def mysql_url(shared_mysql_url: str) -> Iterator[str]:
    """The shared database, which this test finds empty and which is emptied behind it."""
    yield shared_mysql_url
    empty(shared_mysql_url)


@pytest.fixture(params=["sqlite", pytest.param("mysql", marks=pytest.mark.mysql)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Which database `open_manager` opens in this test's directory, in this process and in others."""
    if request.param == "sqlite":
        yield "sqlite"
        return
    url = request.getfixturevalue("mysql_url")
    (tmp_path / URL_FILE).write_text(url)
    yield "mysql"


@pytest.fixture(scope="session")
def forkserver() -> None:
    """Have the modules imported once, so that a process costs a fork. (Python 3.11 does not hand `sys.path` on.)"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
        CONTEXT.set_forkserver_preload(["pytest", "hypothesis", "data_builders"])
        multiprocessing.forkserver.ensure_running()


@pytest.fixture
def new_url(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database without tables."""
    if database == "sqlite":
        yield f"sqlite:///{tmp_path}/new.sqlite"
        return
    server = request.getfixturevalue("mariadb")
    url = server.new_url()
    yield url
    server.drop(url)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def data(tmp_path: Path, clock: Clock) -> Iterator[DataManager]:
    with open_manager(tmp_path, clock) as manager:
        yield manager


@pytest.fixture
def sandboxed() -> Callable[..., str]:
    """Runs a Python program under bubblewrap, so that a full or read-only disk is a real one."""

    def run(program: str, *mounts: str, argument: str) -> str:
        command = [
            "bwrap",
            "--die-with-parent",
            "--dev-bind",
            "/",
            "/",
            *mounts,
            sys.executable,
            "-c",
            program,
            argument,
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
