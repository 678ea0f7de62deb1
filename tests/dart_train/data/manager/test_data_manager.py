from __future__ import annotations

import logging
import shutil
import threading

import numpy as np
import pytest
import sqlalchemy as sa
from data_builders import (
    SMALL,
    Clock,
    make_step,
    make_trajectory,
    open_manager,
    picture,
    publish,
    record_group,
    record_with_image,
)

from dart_gym.core.outcomes import TerminalState
from dart_train.core.train_errors import CheckpointError, CorruptDataError, InvalidTrajectoryError, LeaseError
from dart_train.data import CheckpointStatus, RolloutState, image_hash
from dart_train.data.groups import checkpoint_rows, lease_rows
from dart_train.data.manager.leasing import LeasedGroups
from dart_train.data.store.schema import checkpoint, rollout_group, rollout_meta, rollout_run
from tests.helpers.stored_files import image_path, trajectory_path

pytestmark = pytest.mark.usefixtures("database")  # everything here on each database


def rows(data, table) -> list[sa.Row]:
    return data.store.read(lambda c: list(c.execute(sa.select(table))))


def states(data) -> dict[str, str]:
    return {row.trajectory_id: row.state for row in rows(data, rollout_meta)}


# Recording


def test_a_recorded_trajectory_comes_back_as_it_was(data):
    image = picture()
    name = image_hash(image)
    step = make_step(3, (name,), text="Klick ✓", thought="hm")
    trajectory = make_trajectory("t1", steps=(step, make_step(5)), ended_at=77.5)
    assert data.record(trajectory, {name: image}) is RolloutState.RECORDED
    assert data.load_trajectory("t1") == trajectory
    assert data.load_trajectory("t1") is data.load_trajectory("t1")
    assert np.array_equal(data.load_image(name), image)
    assert list(data.trajectories()) == [trajectory]


def test_published_columns_hold_what_they_say(data):
    data.record(make_trajectory("t1", reward=0.5, steps=(make_step(4), make_step(3)), instruction="x" * 2000))
    row = rows(data, rollout_run)[0]
    assert (row.run_id, row.trajectory_id, row.task_id, row.trace_id) == ("run", "t1", "fake/button", "t1")
    assert (row.reward, row.num_chunks, row.used, row.model_version) == (0.5, 2, 0, "v3")
    assert row.split_dir == "trajectories/t1"
    assert (data.files.root / row.split_dir).is_dir()
    assert row.instruction == "x" * 1024
    assert row.create_at is not None
    meta = rows(data, rollout_meta)[0]
    assert (meta.oldest_version, meta.newest_version, meta.num_steps, meta.num_actions) == (3, 4, 2, 2)
    assert meta.env_seconds == 1.0
    assert meta.timings["generate"] == 3.0
    assert meta.created_at == 1000.0


def test_a_group_is_ready_when_it_is_complete(data):
    data.record(make_trajectory("a", reward=0.0))
    assert data.lease(1, "me") is None
    assert data.record(make_trajectory("b", reward=1.0)) is RolloutState.RECORDED
    leased = data.lease(1, "me")
    assert [t.trajectory_id for t in leased.groups[0].trajectories] == ["a", "b"]
    assert leased.groups[0].rewards == (0.0, 1.0)
    assert (leased.groups[0].key, leased.groups[0].task_id) == ("g", "fake/button")


def test_the_expected_size_of_a_group_may_differ(data):
    for index in range(3):
        data.record(make_trajectory(f"t{index}", reward=float(index == 0)), expected=4)
    assert data.ready() == (0, 0)
    data.record(make_trajectory("t3", reward=0.0), expected=4)
    assert data.ready() == (1, 4)


def test_groups_without_signal_are_rejected(data, tmp_path):
    record_group(data, "g", (1.0, 1.0))
    assert set(states(data).values()) == {"rejected"}
    assert data.census().parts()["no_signal"] == 2
    with open_manager(tmp_path, config=SMALL.model_copy(update={"drop_no_signal": False})) as keeper:
        record_group(keeper, "h", (1.0, 1.0))
        assert keeper.ready() == (1, 2)


def test_errors_do_not_count_as_members(data):
    bad = make_trajectory("bad", reward=None, terminal=TerminalState.ENV_ERROR, steps=())
    assert data.record(bad) is RolloutState.REJECTED
    data.record(make_trajectory("a", reward=1.0))
    assert data.ready() == (0, 0)
    data.record(make_trajectory("b", reward=0.0))
    assert [t.trajectory_id for t in data.lease(1, "me").groups[0].trajectories] == ["a", "b"]
    assert data.census().parts()["untrainable"] == 1


def test_members_beyond_the_size_are_set_aside(data):
    record_group(data, "g")
    assert data.record(make_trajectory("late", reward=1.0)) is RolloutState.REJECTED
    assert data.census().parts()["surplus"] == 1
    assert len(data.lease(1, "me").groups[0].trajectories) == 2


def test_demonstrations_are_pooled_and_never_leased(data):
    for index in range(2):
        step = make_step(logprobs=())
        data.record(make_trajectory(f"d{index}", "", float(index), source="oracle", steps=(step,)))
    assert set(states(data).values()) == {"pooled"}
    assert data.ready() == (0, 0)
    record_group(data, "g", task_id="fake/other")
    assert [t.trajectory_id for t in data.trajectories(source="oracle")] == ["d0", "d1"]
    assert [t.trajectory_id for t in data.trajectories(source="oracle")] == ["d0", "d1"]
    assert [t.trajectory_id for t in data.trajectories(state=RolloutState.POOLED)] == ["d0", "d1"]


def test_recording_twice_changes_nothing(data):
    trajectory = make_trajectory("t1")
    assert data.record(trajectory) is RolloutState.RECORDED
    assert data.record(trajectory) is RolloutState.RECORDED
    assert len(rows(data, rollout_run)) == len(rows(data, rollout_meta)) == 1
    assert rows(data, rollout_group)[0].members == 1


def test_files_without_rows_are_replaced(data):
    """A process killed between the rename and its transaction, whose rollout is played again."""
    data.files.write_trajectory(make_trajectory("t1", instruction="first life"))
    data.record(make_trajectory("t1", instruction="second life"))
    assert data.load_trajectory("t1").instruction == "second life"
    assert data.files.remove_leftovers(older_than_s=-1) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"run_id": "other"}, "of run 'other', not 'run'"),
        ({"group": ""}, "group_key of 0 characters"),
        ({"steps": (make_step(logprobs=(0.0,)),)}, "2 tokens and 1 log-prob"),
        ({"steps": (make_step(images=("ab" * 16,)),)}, "neither given nor stored"),
        ({"name": "../x"}, "safe directory name"),
    ],
)
def test_what_breaks_an_invariant_is_refused_whole(data, fields, message):
    with pytest.raises(InvalidTrajectoryError, match=message):
        data.record(make_trajectory(**{"name": "t1", **fields}))
    assert data.census().total == 0
    assert list((data.files.root / "trajectories").iterdir()) == []


def test_threads_may_record_together(data):
    def record(index: int) -> None:
        for member in range(2):
            record_with_image(data, f"t{index}-{member}", f"g{index}", picture(index % 3), float(member))

    threads = [threading.Thread(target=record, args=(index,)) for index in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert data.ready() == (12, 24)
    assert len(list(data.files.root.glob("images/*/*.png"))) == 3


# Leases


def test_the_oldest_groups_are_leased_first_and_once(data):
    for index in range(5):
        record_group(data, f"g{index}")
    first, second = data.lease(2, "a"), data.lease(2, "b")
    assert [group.key for group in first.groups] == ["g0", "g1"]
    assert [group.key for group in second.groups] == ["g2", "g3"]
    assert data.lease(2, "a") is None
    assert [group.key for group in data.lease(2, "a", at_least=1).groups] == ["g4"]


def test_a_commit_marks_what_was_trained_and_may_be_repeated(data):
    record_group(data, "g")
    leased = data.lease(1, "me")
    assert set(states(data).values()) == {"leased"}
    assert [row.used for row in rows(data, rollout_run)] == [0, 0]
    for _ in range(2):
        leased.commit(4)
        assert set(states(data).values()) == {"trained"}
        assert [row.used for row in rows(data, rollout_run)] == [1, 1]
        assert {row.trained_version for row in rows(data, rollout_meta)} == {4}
    leased.release()
    assert set(states(data).values()) == {"trained"}


def test_a_release_gives_groups_back(data):
    record_group(data, "g")
    leased = data.lease(1, "me")
    for _ in range(2):
        leased.release()
    assert set(states(data).values()) == {"recorded"}
    assert data.lease(1, "you").groups == leased.groups
    with pytest.raises(LeaseError, match=r"of 'me' is released"):
        leased.commit(1)


def test_a_dead_holders_groups_come_back_after_the_time_to_live(data, clock):
    record_group(data, "g")
    dead = data.lease(1, "dead", ttl_s=30)
    clock.now += 29
    dead.heartbeat()
    clock.now += 29
    assert data.lease(1, "alive") is None
    clock.now += 2
    alive = data.lease(1, "alive")
    assert alive is not None
    with pytest.raises(LeaseError, match="is expired: .* heartbeats more often than every 30 s"):
        dead.heartbeat()
    with pytest.raises(LeaseError, match="is expired: others have 1 of its groups"):
        dead.commit(1)
    assert set(states(data).values()) == {"leased"}
    dead.release()
    alive.commit(1)
    assert data.read(lease_rows.count_surplus) == 1


def test_late_work_counts_while_nobody_else_has_the_groups(data, clock):
    record_group(data, "g")
    leased = data.lease(1, "slow", ttl_s=1)
    clock.now += 100
    leased.commit(1)
    assert data.sweep().returned_leases == 0
    assert set(states(data).values()) == {"trained"}


def test_a_restarted_holder_gives_back_what_its_earlier_life_had(data):
    record_group(data, "g0")
    record_group(data, "g1")
    data.lease(1, "trainer")
    other = data.lease(1, "other")
    assert data.resume("trainer", None).released == 1
    assert data.ready() == (1, 2)
    other.heartbeat()


@pytest.mark.parametrize("use", ["commit", "heartbeat", "release"])
def test_unknown_leases_are_errors(data, use):
    arguments = (1,) if use == "commit" else ()
    with pytest.raises(LeaseError, match="no lease 'nonsense' in run 'run'"):
        getattr(LeasedGroups(data, "nonsense", 1, (), ttl_s=60), use)(*arguments)


def test_a_waiting_lease_gets_what_is_recorded_meanwhile(data):
    timer = threading.Timer(0.1, record_group, (data, "g"))
    timer.start()
    assert data.lease(1, "me", timeout_s=20) is not None
    timer.join()
    assert data.lease(1, "me", timeout_s=0.05) is None


def test_damaged_groups_are_left_out_and_said(data, caplog):
    for index in range(4):
        record_group(data, f"g{index}")
    shutil.rmtree(trajectory_path(data.files, "g0-1"))
    image_id = record_with_image(data, "h-0", "h", picture(), 0.0)
    record_with_image(data, "h-1", "h", picture(), 1.0)
    image_path(data.files, image_id).write_bytes(b"")
    with caplog.at_level(logging.ERROR):
        leased = data.lease(3, "me")
        assert data.lease(1, "me") is None
    assert [group.key for group in leased.groups] == ["g1", "g2", "g3"]
    assert "group g0 is left out" in caplog.text
    assert "group h is left out" in caplog.text
    assert (data.census().parts()["corrupt"], data.census().leased) == (4, 6)


# Staleness and checkpoints


def test_stale_groups_are_not_leased_even_without_a_sweep(data):
    publish(data, 1)
    record_group(data, "old", version=1)
    record_group(data, "new", version=3)
    publish(data, 3)
    assert data.ready() == (2, 4)
    publish(data, 4)
    assert data.ready() == (1, 2)
    assert [group.key for group in data.lease(1, "me").groups] == ["new"]
    assert states(data)["old-0"] == "expired"
    assert "2 older than version 2" in data.diagnose()


def test_staleness_counts_from_weights_that_are_still_being_written(data):
    """A trainer goes on while its version is written: it is one ahead of what everybody else knows of."""
    record_group(data, "old", version=1)
    record_group(data, "new", version=2)
    publish(data, 3)
    assert [group.key for group in data.lease(2, "me", at_least=1, weights=4).groups] == ["new"]
    assert states(data)["old-0"] == "expired"


def test_the_oldest_step_of_any_member_decides(data):
    data.record(make_trajectory("a", reward=0.0, version=5))
    data.record(make_trajectory("b", reward=1.0, steps=(make_step(5), make_step(2), make_step(5))))
    publish(data, 5)
    assert data.ready() == (0, 0)
    assert data.sweep().expired == 2


def test_unfinished_groups_expire_with_those_who_come_late(data):
    publish(data, 0)
    data.record(make_trajectory("a", version=0))
    publish(data, 3)
    sweep = data.sweep()
    assert (sweep.expired_groups, sweep.expired) == (1, 1)
    assert data.record(make_trajectory("b", version=3)) is RolloutState.EXPIRED
    assert data.census().parts()["stale"] == 2


def test_without_a_limit_nothing_is_stale(tmp_path):
    with open_manager(tmp_path, config=SMALL.model_copy(update={"max_staleness": None})) as data:
        record_group(data, "g", version=0)
        publish(data, 1000)
        assert data.ready() == (1, 2)


def test_the_status_of_a_checkpoint_is_true_at_every_moment(data, tmp_path):
    path = tmp_path / "checkpoints" / "v0"
    assert data.newest_checkpoint() is None
    assert data.read(checkpoint_rows.next_version) == 0
    data.write(checkpoint_rows.announce, 0, path, "initial")
    assert [row.status for row in data.checkpoints()] == [CheckpointStatus.PENDING]
    assert data.newest_checkpoint() is None
    assert data.read(checkpoint_rows.next_version) == 1
    with pytest.raises(CheckpointError, match="does not exist: write v0 there first"):
        data.publish(0, path)
    for _ in range(2):
        data.write(checkpoint_rows.begin, 0)
        assert [row.status for row in data.checkpoints()] == [CheckpointStatus.RUNNING]
    path.mkdir(parents=True)
    for _ in range(2):
        data.publish(0, path)
    data.write(checkpoint_rows.begin, 0)  # what is complete stays so
    with pytest.raises(CheckpointError, match="announce it first"):
        data.write(checkpoint_rows.begin, 7)
    newest = data.newest_checkpoint()
    assert (newest.version, newest.path, newest.source) == (0, str(path), "initial")
    row = rows(data, checkpoint)[0]
    assert (row.name, row.version, row.run_id, row.status) == ("v0", "v0", "run", "COMPLETED")
    assert None not in (row.started_at, row.finished_at)
    with pytest.raises(CheckpointError, match="versions are never reused"):
        data.publish(0, tmp_path)


def test_retired_checkpoints_still_count(data):
    for version in range(3):
        publish(data, version)
    data.write(checkpoint_rows.announce, 3, "/somewhere/v3")
    data.write(checkpoint_rows.fail, 3)
    data.write(checkpoint_rows.deprecate, 2)
    assert data.newest_checkpoint().version == 1
    assert data.read(checkpoint_rows.next_version) == 4
    assert data.store.read(data.oldest_allowed) == 0
    assert [row.status.value for row in data.checkpoints()] == ["FAILED", "DEPRECATED", "COMPLETED", "COMPLETED"]
    with pytest.raises(CheckpointError, match="no v9"):
        data.write(checkpoint_rows.deprecate, 9)


def test_paths_are_stored_absolute_and_remote_ones_as_they_are(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    data.publish(0, "here")
    data.publish(1, "s3://bucket/v1")
    assert [row.path for row in data.checkpoints()] == ["s3://bucket/v1", str(tmp_path / "here")]
    with pytest.raises(CheckpointError, match="longer than 255"):
        data.write(checkpoint_rows.announce, 2, "/" + "x" * 300)


def test_a_run_goes_on_where_it_was(tmp_path):
    with open_manager(tmp_path) as data:
        publish(data, 0)
        record_group(data, "g")
        data.set_fact("seed", {"next": 5})
        data.set_fact("seed", {"next": 6})
    with open_manager(tmp_path) as data:
        assert data.read(checkpoint_rows.next_version) == 1
        assert data.ready() == (1, 2)
        assert data.fact("seed") == {"next": 6}
        assert data.fact("other", "nothing") == "nothing"


# Decisions and explanations


def test_admission_stops_when_the_trainer_is_behind(data):
    """Two batches of two groups: four may wait or run, however many rollouts they are."""
    assert (data.room(3), data.room(4), data.room(5)) == (1, 0, 0)
    for index in range(3):
        record_group(data, f"g{index}")
    assert (data.room(0), data.room(1)) == (1, 0)
    data.record(make_trajectory("unfinished", "u"))
    assert data.room(0) == 1  # what is open is counted by who plays it
    leased = data.lease(2, "me")
    assert data.room(2) == 1
    leased.release()
    publish(data, 9)
    assert data.room(3) == 1


def test_groups_without_signal_make_room_for_more(data):
    """Four groups may wait or run that can be trained on, and an open one counts as much as the latest ones brought."""
    for index in range(6):
        record_group(data, f"dry{index}", rewards=(0.0, 0.0))
    assert data.room(4) == 4 / 0.4 - 4  # (0 + 4) / (6 + 4): four are taken for usable before any was seen
    for index in range(2):
        record_group(data, f"g{index}")
    assert data.room(0) == 2 / 0.5  # two of the four are there; (2 + 4) / (8 + 4)


def test_why_accounts_for_every_trajectory(data):
    assert "is the rollout service running" in data.diagnose()
    publish(data, 5)
    record_group(data, "stale", version=1)
    record_group(data, "same", (0.0, 0.0), version=5)
    record_group(data, "ready", version=5)
    data.record(make_trajectory("alone", "alone", version=5))
    data.record(make_trajectory("broken", "b", None, terminal=TerminalState.ENV_ERROR, steps=()))
    data.record(make_trajectory("demo", "", source="oracle"))
    assert data.diagnose() == (
        "2 of 9 trajectories eligible in 1 groups: 2 older than version 3 (serving versions {5}; rows carry {1}), "
        "2 in groups with no variance (1 groups all 0), 1 in unfinished groups (1 with 1 of 2), "
        "1 in the pool or demonstrations, 1 ended in an environment, engine or evaluation error (env_error 1)"
    )
    census = data.census()
    data.sweep()
    assert data.census() == census
    assert census.total == sum(data.counts().values()) == 9


def test_a_damaged_screenshot_is_said(data):
    image_id = record_with_image(data, "t", "g", picture())
    image_path(data.files, image_id).write_bytes(b"no image")
    with pytest.raises(CorruptDataError, match="go on without it"):
        data.load_image(image_id)


def test_an_injected_clock_decides_about_leases(tmp_path):
    first, second = Clock(0.0), Clock(1e9)
    with open_manager(tmp_path, first) as mine, open_manager(tmp_path, second) as theirs:
        record_group(mine, "g")
        assert mine.lease(1, "me") is not None
        assert theirs.lease(1, "they") is not None
