"""Locks in the database: one holder at a time, over runs, connections and dead holders."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from data_builders import open_manager, url_of

from dart_train.data import DataManager
from dart_train.data.store.database_locks import LONGEST_NAME, DatabaseLocks

pytestmark = pytest.mark.usefixtures("database")
CONTENDERS = 6


def test_a_lock_has_one_holder_until_its_lease_is_over(tmp_path, clock):
    with (
        open_manager(tmp_path, clock) as one,
        DataManager.open(url_of(tmp_path), tmp_path / "data", "another run", clock=clock) as two,
    ):
        assert DatabaseLocks(one.store).take_lock("update x", "a", 10) == "a"
        assert DatabaseLocks(two.store).take_lock("update x", "b", 10) == "a", "runs share what they guard"
        assert DatabaseLocks(two.store).take_lock("update y", "b", 10) == "b"
        clock.now += 9
        assert DatabaseLocks(one.store).take_lock("update x", "a", 10) == "a", "held for longer"
        clock.now += 9
        assert DatabaseLocks(two.store).take_lock("update x", "b", 10) == "a"
        clock.now += 2
        assert DatabaseLocks(two.store).take_lock("update x", "b", 10) == "b"
        DatabaseLocks(one.store).give_back_lock("update x", "a")  # it is not a's any more
        assert DatabaseLocks(one.store).take_lock("update x", "a", 10) == "b"
        DatabaseLocks(two.store).give_back_lock("update x", "b")
        assert DatabaseLocks(one.store).take_lock("update x", "a", 10) == "a"
        assert DatabaseLocks(one.store).take_lock("n" * LONGEST_NAME, "a", 10) == "a"
        assert one.fact("lock:update x") is None, "no fact of a run"


def test_of_many_who_ask_at_once_one_gets_it(tmp_path):
    """Also where there is no row yet, and where all find that the holder is dead."""
    start = threading.Barrier(CONTENDERS)
    managers = [open_manager(tmp_path) for _ in range(CONTENDERS)]

    def ask(index: int, name: str) -> bool:
        start.wait(60)
        return DatabaseLocks(managers[index].store).take_lock(name, f"holder-{index}", 60.0) == f"holder-{index}"

    try:
        DatabaseLocks(managers[0].store).take_lock("orphan", "dead", -1.0)
        with ThreadPoolExecutor(CONTENDERS) as pool:
            for name in ("new", "orphan"):
                assert sum(pool.map(ask, range(CONTENDERS), [name] * CONTENDERS)) == 1
    finally:
        for manager in managers:
            manager.close()
