from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from data_builders import SMALL, make_step, make_trajectory, open_manager, picture, record_group
from hypothesis import given
from hypothesis import strategies as st

from dart_train.core.data_states import Provenance
from dart_train.data import DataManager, RolloutState, image_hash
from dart_train.data.maintenance.retention import collect
from dart_train.data.maintenance.retention_plan import RetentionConfig, StoredTrajectory, plan_removal
from dart_train.data.store.schema import rollout_run
from tests.helpers.stored_files import image_path, trajectory_path

EVERYTHING = RetentionConfig(max_age_days=0.0)
NOW = {"orphan_grace_s": 0.0, "image_grace_s": 0.0}


@pytest.fixture
def run(tmp_path, database) -> DataManager:
    with open_manager(tmp_path) as manager:
        yield manager


def item(name: str, ended_at: float = 0.0, size: int = 10, images: tuple[str, ...] = (), removable: bool = True):
    return StoredTrajectory(name, ended_at, size, frozenset(images), removable)


def test_age_removes_what_is_older_and_done():
    stored = [item("old", 0.0), item("young", 90.0), item("in use", 0.0, removable=False)]
    assert plan_removal(stored, {}, now=100.0, max_age_s=50.0, max_bytes=None) == ["old"]
    assert plan_removal(stored, {}, now=100.0, max_age_s=None, max_bytes=None) == []


def test_size_removes_the_oldest_until_the_rest_fits():
    stored = [item("c", 3.0), item("a", 1.0), item("b", 2.0)]
    assert plan_removal(stored, {}, now=9.0, max_age_s=None, max_bytes=10) == ["a", "b"]
    assert plan_removal(stored, {}, now=9.0, max_age_s=None, max_bytes=30) == []


def test_a_shared_screenshot_counts_once_and_goes_with_the_last_that_shows_it():
    stored = [item("a", 1.0, images=("x",)), item("b", 2.0, images=("x",)), item("c", 3.0, images=("y",))]
    sizes = {"x": 100, "y": 100}  # together 230
    assert plan_removal(stored, sizes, now=9.0, max_age_s=None, max_bytes=225) == ["a"]
    assert plan_removal(stored, sizes, now=9.0, max_age_s=None, max_bytes=219) == ["a", "b"]


stored_lists = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 50), st.frozensets(st.sampled_from("wxyz")), st.booleans()),
    max_size=12,
).map(lambda rows: [StoredTrajectory(f"t{i}", float(a), b, c, d) for i, (a, b, c, d) in enumerate(rows)])


@given(stored_lists, st.none() | st.floats(0, 100), st.none() | st.integers(0, 500))
def test_nothing_in_use_is_removed_and_limits_are_met_where_they_can_be(stored, max_age_s, max_bytes):
    sizes = dict.fromkeys("wxyz", 30)
    removed = plan_removal(stored, sizes, now=100.0, max_age_s=max_age_s, max_bytes=max_bytes)
    kept = [entry for entry in stored if entry.trajectory_id not in removed]
    assert {entry.trajectory_id for entry in stored if not entry.removable}.isdisjoint(removed)
    shown = {name for entry in kept for name in entry.image_ids}
    total = sum(entry.size for entry in kept) + sum(sizes[name] for name in shown)
    assert max_bytes is None or total <= max_bytes or not any(entry.removable for entry in kept)
    assert max_age_s is None or all(100.0 - entry.ended_at <= max_age_s for entry in kept if entry.removable)
    if max_age_s is None and max_bytes is None:
        assert not removed


def test_only_what_is_done_with_goes_and_its_history_stays(run):
    record_group(run, "trained")
    run.lease(1, "trainer").commit(0)
    leased_names = record_group(run, "leased")
    lease = run.lease(1, "trainer")
    record_group(run, "waiting")
    dropped = record_group(run, "dropped", (1.0, 1.0))
    run.record(make_trajectory("shown", "", 1.0, source="oracle"))
    done = collect(run, EVERYTHING, **NOW)
    assert (done.removed, done.problems) == (4, [])
    left = {name for name, _ in run.files.stored_trajectories()}
    assert left == {*leased_names, "waiting-0", "waiting-1", "shown"}
    assert run.counts()["trained"] == 2  # the rows are history
    assert [item.trajectory_id for item in run.trajectories(state=RolloutState.REJECTED)] == []
    assert dropped[0] not in left
    lease.commit(0)
    assert collect(run, EVERYTHING, **NOW).removed == 2


def test_what_joined_a_group_from_the_pool_is_never_removed(tmp_path, database):
    own = SMALL.model_copy(update={"experience_pool": True, "pool_sources": (Provenance.ROLLOUT,)})
    with open_manager(tmp_path, config=own) as data:
        record_group(data, "good")
        data.lease(1, "trainer").commit(0)
        assert collect(data, EVERYTHING, **NOW).removed == 1  # the failure; the success is in the pool
        record_group(data, "bad", (0.0, 0.0))
        [group] = data.lease(1, "trainer").groups
        assert group.injected == {"good-1"}


def test_screenshots_go_with_the_last_trajectory_that_shows_them(run):
    shared, own = picture(1), picture(2)
    images = {image_hash(image): image for image in (shared, own)}
    names = list(images)
    run.record(make_trajectory("a", "g", 0.0, steps=(make_step(0, tuple(names)),)), images)
    run.record(make_trajectory("b", "g", 1.0, steps=(make_step(0, (names[0],)),)))
    run.record(make_trajectory("c", "later", 1.0, steps=(make_step(0, (names[0],)),)))
    run.lease(1, "trainer").commit(0)
    done = collect(run, EVERYTHING, **NOW)
    assert (done.removed, done.images) == (2, 1)
    assert [name for name, _ in run.files.stored_images()] == names[:1]
    assert done.kept_bytes == sum(entry.size for _, entry in run.files.stored_images()) + sum(
        entry.size for _, entry in run.files.stored_trajectories()
    )


def test_a_screenshot_that_a_recorder_needs_is_made_young_before_it_can_be_collected(run):
    image = picture(7)
    name = image_hash(image)
    run.files.write_images({name: image})
    long_ago = time.time() - 10 * 86400
    os.utime(image_path(run.files, name), (long_ago, long_ago))
    with open_manager(run.files.root.parent) as recorder:  # another process, which has written nothing yet
        assert recorder.files.has_image(name)
        assert collect(run).images == 0
        os.utime(image_path(run.files, name), (long_ago, long_ago))
        assert collect(run).images == 1


def test_a_complete_trajectory_without_a_row_is_recorded(run):
    for name, reward in (("a", 0.0), ("b", 1.0)):
        run.files.write_trajectory(make_trajectory(name, "g", reward))
    assert collect(run).adopted == 0  # they may be on their way
    assert collect(run, dry_run=True, **NOW).adopted == 2
    assert run.census().total == 0
    assert collect(run, **NOW).adopted == 2
    assert run.ready() == (1, 2)
    assert collect(run, **NOW).adopted == 0


def test_garbage_without_a_row_is_removed_and_what_another_run_wrote_is_said(run):
    run.files.write_trajectory(make_trajectory("torn"))
    (trajectory_path(run.files, "torn") / "trajectory.msgpack").write_bytes(b"torn")
    run.files.write_trajectory(make_trajectory("stranger", run_id="another run"))
    done = collect(run, **NOW)
    assert (done.unreadable, done.adopted) == (1, 0)
    assert "another run" in done.problems[0]
    assert [name for name, _ in run.files.stored_trajectories()] == ["stranger"]


def test_a_collection_that_was_killed_is_finished_by_the_next(run):
    record_group(run, "trained")
    run.lease(1, "trainer").commit(0)
    gone = rollout_run.update().where(rollout_run.c.trajectory_id == "trained-0").values(split_dir=None)
    run.store.write(lambda c: c.execute(gone))  # where it was killed: after the row, before the files
    done = collect(run, **NOW)
    assert (done.half_removed, done.removed) == (1, 0)
    assert [name for name, _ in run.files.stored_trajectories()] == ["trained-1"]


def test_while_a_trajectory_cannot_be_read_no_screenshot_is_removed(run):
    record_group(run, "g")
    (trajectory_path(run.files, "g-0") / "trajectory.msgpack").write_bytes(b"torn")
    image = picture(1)
    run.files.write_images({image_hash(image): image})
    done = collect(run, **NOW)
    assert done.images == 0
    assert "check --repair" in done.problems[-1]
    assert len(list(run.files.stored_images())) == 1


def test_old_screenshots_become_webp_where_that_is_smaller(run, tmp_path: Path):
    drawn = np.full((60, 80, 3), 200, np.uint8)
    drawn[10:20, 10:60] = (20, 30, 40)
    noise = np.random.default_rng(0).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    images = {image_hash(image): image for image in (drawn, noise)}
    run.record(make_trajectory("a", "g", 1.0, steps=(make_step(0, tuple(images)),)), images)
    before = run.files.find_image(image_hash(drawn)).size
    done = collect(run, RetentionConfig(webp_after_days=0.0), **NOW)
    after = run.files.find_image(image_hash(drawn))
    assert after.key.endswith(".webp")
    assert done.reencoded >= 1
    assert done.freed_bytes >= before - after.size > 0
    for name, image in images.items():
        assert (run.files.read_image(name) == image).all()
    assert len(list(run.files.stored_images())) == 2


def test_a_dry_run_changes_nothing(run):
    record_group(run, "trained")
    run.lease(1, "trainer").commit(0)
    image = picture(1)
    run.files.write_images({image_hash(image): image})
    done = collect(run, RetentionConfig(max_age_days=0.0, webp_after_days=0.0), dry_run=True, **NOW)
    assert (done.removed, done.images, done.reencoded) == (2, 1, 1)
    assert len(list(run.files.stored_trajectories())) == 2
    assert len(list(run.files.stored_images())) == 1


def test_collecting_while_others_record_and_train_takes_nothing_from_them(run):
    """A collector without any grace runs all the time; screenshots are shared by all groups."""
    images = {image_hash(image): image for image in (picture(1), picture(2))}
    shown = (make_step(0, tuple(images)),)
    stop, collected = threading.Event(), []

    def clean() -> None:
        with open_manager(run.files.root.parent) as own:
            while not stop.is_set():
                collected.append(collect(own, EVERYTHING, orphan_grace_s=3600.0))

    collector = threading.Thread(target=clean)
    collector.start()
    try:
        for number in range(12):
            for member, reward in enumerate((0.0, 1.0)):
                run.record(make_trajectory(f"{number}-{member}", f"g{number}", reward, steps=shown), images)
            leased = run.lease(1, "trainer")
            assert leased is not None
            assert all((run.files.read_image(name) == image).all() for name, image in images.items())
            leased.commit(0)
    finally:
        stop.set()
        collector.join()
    assert run.census().parts()["corrupt"] == 0
    assert run.counts()["trained"] == 24
    assert sum(done.removed for done in collected) + collect(run, EVERYTHING).removed == 24
