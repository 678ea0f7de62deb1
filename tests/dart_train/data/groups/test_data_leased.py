"""The lease interface as any trainer uses it."""

from __future__ import annotations

import logging
import threading

import pytest
import sqlalchemy as sa
from data_builders import make_step, make_trajectory, open_manager, publish, record_group

from dart_agent.episodes.trajectory import Step
from dart_train.core.train_errors import LeaseError
from dart_train.data import Resumed
from dart_train.data.groups import checkpoint_rows, lease_rows
from dart_train.data.insight import serving
from dart_train.data.store.schema import lease, rollout_step
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.usefixtures("database")


def test_groups_are_iterated_and_committed(data):
    record_group(data, "g0")
    record_group(data, "g1")
    seen = []
    for leased in data.leases("me", groups=1, stop=lambda: data.counts()["trained"] == 4):
        with leased:
            seen += [group.key for group in leased]
            assert len(leased) == 1
            leased.commit(0)
    assert seen == ["g0", "g1"]


def test_a_block_left_by_an_error_gives_the_groups_back(data):
    record_group(data, "g")
    with pytest.raises(ZeroDivisionError), data.lease(1, "me"):
        raise ZeroDivisionError
    assert data.ready() == (1, 2)


def test_heartbeats_are_sent_inside_the_block(database, tmp_path):
    with open_manager(tmp_path) as data:
        record_group(data, "g")
        with data.lease(1, "me", ttl_s=1.5) as leased:
            query = sa.select(lease.c.expires_at).where(lease.c.lease_id == leased.lease_id)
            first = data.store.read(lambda c: c.execute(query).scalar())
            wait_until(lambda: data.store.read(lambda c: c.execute(query).scalar()) > first + 1.5)
            assert data.sweep().returned_leases == 0
            leased.commit(0)


def test_a_lease_that_was_lost_is_noticed(database, tmp_path):
    with open_manager(tmp_path) as data:
        record_group(data, "g")
        with data.lease(1, "me", ttl_s=0.3) as leased:
            data.write(lease_rows.release, leased.lease_id)  # as a sweep does when heartbeats stop
            assert leased.lost.wait(60)
            with pytest.raises(LeaseError, match="is released"):
                leased.commit(0)


def test_waiting_is_not_silent(data, caplog):
    data.record(make_trajectory("alone"))
    stop = threading.Event()
    with caplog.at_level(logging.INFO):
        thread = threading.Thread(
            target=lambda: list(data.leases("me", groups=1, stop=stop.is_set, poll_s=0.02, say_after_s=0.05))
        )
        thread.start()
        wait_until(lambda: "1 in unfinished groups" in caplog.text)
        stop.set()
        thread.join()


# Beginning again


def test_what_the_weights_hold_is_committed_and_the_rest_comes_back(data):
    for index in range(3):
        record_group(data, f"g{index}")
    first, second, third = (data.lease(1, "me") for _ in range(3))
    assert [item.serial for item in (first, second, third)] == [1, 2, 3]
    first.commit(0)
    second_key = second.groups[0].key  # trained on and saved, killed before its commit
    assert data.resume("me", second.serial) == Resumed(committed=1, released=1)
    assert data.counts()["trained"] == 4
    assert [group.key for group in data.lease(1, "me")] != [second_key]


def test_what_was_trained_into_lost_weights_comes_back(data):
    record_group(data, "g0")
    record_group(data, "g1")
    for _ in range(2):
        data.lease(1, "me").commit(0)
    assert data.resume("me", 1) == Resumed(undone=1)
    assert (data.counts()["trained"], data.counts()["recorded"]) == (2, 2)
    again = data.lease(1, "me")
    assert (again.groups[0].key, again.serial) == ("g1", 3)
    again.commit(0)
    assert data.resume("me", 3) == Resumed()
    assert data.read(lease_rows.count_surplus) == 0


def test_another_holder_and_unknown_weights_are_left_alone(data):
    record_group(data, "g0")
    record_group(data, "g1")
    data.lease(1, "me").commit(0)
    other = data.lease(1, "other")
    assert data.resume("me", None) == Resumed()
    assert data.resume("nobody", 0) == Resumed()
    other.commit(0)
    assert data.counts()["trained"] == 4


def test_what_others_trained_meanwhile_is_surplus(data, clock):
    record_group(data, "g")
    mine = data.lease(1, "me", ttl_s=1)
    clock.now += 10
    data.lease(1, "other").commit(0)
    assert data.resume("me", mine.serial).surplus == 1
    assert data.read(lease_rows.count_surplus) == 1


def test_the_version_that_resulted_is_written_down(data):
    publish(data, 0)
    for index in range(3):
        record_group(data, f"g{index}")
    results = sa.select(lease.c.result_version).order_by(lease.c.serial)

    def resulted() -> list[int | None]:
        return data.store.read(lambda c: list(c.execute(results).scalars()))

    data.lease(1, "me").commit(0)
    assert resulted() == [None]
    publish(data, 1)
    assert resulted() == [1]
    late = data.lease(1, "me")
    publish(data, 2)
    late.commit(1)  # published before it was handed in
    data.lease(1, "me").commit(2)
    assert resulted() == [1, 2, None]


# Lives of versions


def test_versions_are_published_served_and_retired(data, clock):
    publish(data, 0)
    clock.now += 1
    publish(data, 1)
    data.serving("r0", 0)
    data.serving("r1", 0)
    data.serving("r0", 1)
    assert data.read(serving.serving_now) == {"r1": 0, "r0": 1}
    data.serving("r1", None)
    clock.now += 1
    data.write(checkpoint_rows.deprecate, 0)
    newest, oldest = data.read(serving.version_lives)
    assert (newest.version, newest.published_at, newest.retired_at, newest.replicas) == (1, 1001.0, None, ("r0",))
    assert (oldest.version, oldest.published_at, oldest.retired_at, oldest.replicas) == (0, 1000.0, 1002.0, ())


def test_versions_are_kept_per_step(data):
    data.record(make_trajectory("t", steps=(make_step(3), Step((1,), (), (2,), (-0.5,), (4, 5), action_error="no"))))
    query = sa.select(
        rollout_step.c.step, rollout_step.c.oldest_version, rollout_step.c.newest_version, rollout_step.c.failed
    )
    assert data.store.read(lambda c: [tuple(row) for row in c.execute(query)]) == [(0, 3, 3, False), (1, 4, 5, True)]


def test_stale_groups_beyond_one_sweeps_share_are_expired_too(data, monkeypatch):
    for index in range(7):
        record_group(data, f"g{index}", version=0)
    publish(data, 9)
    monkeypatch.setattr(lease_rows, "SWEEP_GROUPS", 3)
    assert data.sweep().expired_groups == 7
    assert data.counts()["expired"] == 14


def test_what_was_trained_is_not_looked_at_again(database, data):
    """A lease reads the waiting groups off their index, however long the run is."""
    engine = data.store.engine
    for oldest in (None, 3):
        query = lease_rows.waiting_in_order("run", oldest).limit(8)
        text = str(query.compile(dialect=engine.dialect, compile_kwargs={"literal_binds": True}))
        explain = "EXPLAIN QUERY PLAN " if database == "sqlite" else "EXPLAIN "
        plan = str(data.store.read(lambda c: list(c.exec_driver_sql(explain + text))))  # noqa: B023 - called at once
        assert "idx_rollout_group_state" in plan
        assert "TEMP B-TREE" not in plan
        assert "filesort" not in plan
