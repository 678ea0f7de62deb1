"""A database's address at which something silent or strange listens: said, and given up in time."""

from __future__ import annotations

import time

import pytest

from dart_gym.utils import waits
from dart_train.core.train_errors import DatabaseGoneError, DatabaseRefusedError, DataError
from dart_train.data.store.sql_store import Store
from dart_train.nodes.ray_cluster import ClusterUnreachable, connect
from scripts.failures.situations import Situation
from scripts.failures.stub_server import Protocol, stub


@pytest.mark.parametrize(
    ("situation", "error", "words"),
    [
        (Situation.HANGS, DatabaseGoneError, "no greeting within 1 s"),
        (Situation.TOO_MANY, DatabaseGoneError, "Too many connections"),
        (Situation.UNAUTHORIZED, DatabaseRefusedError, "check the name, the password"),
        (Situation.HTML, DatabaseRefusedError, "no MySQL server: check host and port"),
        (Situation.SERVER_ERROR, DataError, "Unknown error"),
        (Situation.HALF, DatabaseGoneError, "check that it exists and is running"),
    ],
)
def test_what_a_server_answers(situation, error, words):
    with stub(Protocol.MYSQL, situation) as server, pytest.raises(error, match=words):
        Store(f"mysql+pymysql://me@127.0.0.1:{server.port}/runs", unavailable_timeout_s=1.0)


@pytest.mark.parametrize(
    ("situation", "words"),
    [
        (Situation.HANGS, "did not answer within 0.5 s"),
        (Situation.HTML, "is no Ray cluster"),
        (Situation.HALF, "it closed the connection"),
    ],
)
def test_what_is_no_ray_cluster(situation, words):
    """Ray itself waits for minutes for what takes connections and says nothing."""
    with stub(Protocol.TCP, situation) as server, pytest.raises(ClusterUnreachable, match=words):
        connect(f"127.0.0.1:{server.port}", 0.5)


def test_a_wait_for_the_database_is_known_while_it_lasts(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/x.sqlite")

    def look(_: object) -> list[str]:
        return waits.due(list(waits.running.values()), time.monotonic() + waits.SAID_AFTER_S + 1)

    assert store.read(look) == [f"waiting for the database {tmp_path}/x.sqlite for 11 s now"]
    assert look(None) == []
    store.close()
