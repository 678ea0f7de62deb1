"""`dart-train data check` finds what can be wrong, each made really, and repairs what can be."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable

import pytest
from data_builders import RUN, make_step, make_trajectory, open_manager, picture, record_group

from dart_agent.episodes.trajectory_format import pack_trajectory
from dart_train.core.data_states import GroupState
from dart_train.core.train_errors import DatabaseGoneError, DataError, DiskFullError, ReadOnlyError, SchemaError
from dart_train.data import DataManager, image_hash
from dart_train.data.maintenance.integrity_check import Problem, check_run, unopened
from dart_train.data.store.schema import rollout_group, rollout_run
from tests.helpers.stored_files import image_path, trajectory_path


@pytest.fixture
def run(tmp_path, database) -> DataManager:
    with open_manager(tmp_path) as manager:
        yield manager


def record_shown(data: DataManager, name: str, seed: int = 1, group: str = "g", reward: float = 1.0) -> str:
    image = picture(seed)
    step = make_step(0, (image_hash(image),))
    data.record(make_trajectory(name, group, reward, steps=(step,)), {image_hash(image): image})
    return image_hash(image)


def problems(data: DataManager, **options) -> dict[str, int]:
    return check_run(data, orphan_grace_s=0.0, least_free_bytes=0, **options).counts()


def test_a_sound_run_is_whole(run):
    record_shown(run, "a")
    record_group(run, "trained")
    run.lease(1, "trainer").commit(0)
    report = check_run(run, orphan_grace_s=0.0, least_free_bytes=0)
    assert report.whole
    assert (report.findings, report.trajectories, report.images) == ([], 3, 1)


def lose_files(data: DataManager) -> None:
    record_shown(data, "a")
    data.files.remove_trajectory("a")


def lose_row(data: DataManager) -> None:
    data.files.write_trajectory(make_trajectory("a"))


def tear_trajectory(data: DataManager) -> None:
    record_shown(data, "a")
    path = trajectory_path(data.files, "a") / "trajectory.msgpack"
    path.write_bytes(path.read_bytes()[:-9])


def swap_trajectory(data: DataManager) -> None:
    record_shown(data, "a")
    path = trajectory_path(data.files, "a") / "trajectory.msgpack"
    path.write_bytes(pack_trajectory(make_trajectory("a", reward=0.25, steps=data.load_trajectory("a").steps)))


def lose_image(data: DataManager) -> None:
    image_path(data.files, record_shown(data, "a")).unlink()


def spoil_image(data: DataManager) -> None:
    path = image_path(data.files, record_shown(data, "a"))
    path.write_bytes(path.read_bytes()[:-30])


def exchange_image(data: DataManager) -> None:
    path = image_path(data.files, record_shown(data, "a"))
    other = record_shown(data, "b", seed=2)
    path.write_bytes(image_path(data.files, other).read_bytes())


def miscount(data: DataManager) -> None:
    record_group(data, "g")
    wrong = rollout_group.update().where(rollout_group.c.group_key == "g").values(members=5)
    data.store.write(lambda c: c.execute(wrong))


def lease_to_nobody(data: DataManager) -> None:
    record_group(data, "g")
    state = {"state": GroupState.LEASED.value, "lease_id": "0" * 32}
    taken = rollout_group.update().where(rollout_group.c.group_key == "g").values(state)
    data.store.write(lambda c: c.execute(taken))


DAMAGE: list[tuple[Callable[[DataManager], None], Problem]] = [
    (lose_files, Problem.ROW_WITHOUT_FILES),
    (lose_row, Problem.FILES_WITHOUT_ROW),
    (tear_trajectory, Problem.CORRUPT_TRAJECTORY),
    (swap_trajectory, Problem.ROW_DIFFERS),
    (lose_image, Problem.IMAGE_MISSING),
    (spoil_image, Problem.CORRUPT_IMAGE),
    (exchange_image, Problem.CORRUPT_IMAGE),
    (miscount, Problem.GROUP_COUNT),
    (lease_to_nobody, Problem.LOST_LEASE),
]


@pytest.mark.parametrize(("damage", "problem"), DAMAGE, ids=lambda value: getattr(value, "__name__", None))
def test_every_damage_is_found(run, damage, problem):
    record_group(run, "sound")
    damage(run)
    report = check_run(run, orphan_grace_s=0.0, least_free_bytes=0)
    assert report.counts() == {problem.value: 1}
    assert not report.whole


@pytest.mark.parametrize("damage", [item[0] for item in DAMAGE[:7]], ids=lambda value: value.__name__)
def test_what_is_mended_is_counted_and_whole_afterwards(run, damage):
    sound = record_group(run, "sound")
    damage(run)
    report = check_run(run, repair=True, orphan_grace_s=0.0, least_free_bytes=0)
    assert report.repaired >= 1
    after = check_run(run, orphan_grace_s=0.0, least_free_bytes=0)
    assert after.whole, after.findings
    [group] = run.lease(1, "trainer").groups
    assert [item.trajectory_id for item in group.trajectories] == sound
    assert run.lease(1, "trainer", at_least=1) is None  # nothing damaged can be leased


def test_a_quick_check_leaves_the_pixels_unread(run):
    spoil_image(run)
    assert problems(run, pixels=False) == {}
    image_path(run.files, record_shown(run, "b", seed=3)).write_bytes(b"")
    assert problems(run, pixels=False) == {"damaged screenshot": 1}


def test_a_clock_that_was_ahead_is_told_and_harmless(run):
    run.record(make_trajectory("a", ended_at=time.time() + 3600.0))
    report = check_run(run, orphan_grace_s=0.0, least_free_bytes=0)
    assert report.counts() == {"clock of a machine was ahead": 1}
    assert report.whole


def test_screenshots_that_nothing_shows_are_told_and_harmless(run):
    image = picture(3)
    run.files.write_images({image_hash(image): image})
    long_ago = time.time() - 10 * 86400
    os.utime(image_path(run.files, image_hash(image)), (long_ago, long_ago))
    report = check_run(run, least_free_bytes=0)
    assert report.counts() == {"screenshot that nothing shows": 1}
    assert report.whole


def test_a_disk_that_is_nearly_full_is_told(run):
    report = check_run(run, least_free_bytes=1 << 60)
    assert set(report.counts()) == {"disk nearly full"}


def test_what_retention_gave_up_is_no_damage(run):
    record_group(run, "g")
    run.store.write(lambda c: c.execute(rollout_run.update().values(split_dir=None)))
    for name in ("g-0", "g-1"):
        run.files.remove_trajectory(name)
    assert problems(run) == {}


CHECK = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from data_builders import RUN
    from dart_train.data import DataManager
    from dart_train.data.maintenance.integrity_check import check_run, unopened
    from dart_train.core.train_errors import DataError

    database, files = sys.argv[1].split(":")
    try:
        report = check_run(DataManager.open(f"sqlite:///{database}/dart.sqlite", files, RUN), least_free_bytes=0)
    except DataError as error:
        report = unopened(error, database)
    for finding in report.findings:
        print(finding.problem.value, "|", finding.where, "|", finding.detail)
    """
)


@pytest.mark.process
@pytest.mark.parametrize("place", ["database", "files"])
def test_a_read_only_disk_is_found(sandboxed, tmp_path, place):
    for name in ("database", "files"):
        (tmp_path / name).mkdir()
    with DataManager.open(f"sqlite:///{tmp_path}/database/dart.sqlite", tmp_path / "files", RUN) as data:
        record_group(data, "g")
    where = str(tmp_path / place)
    output = sandboxed(CHECK, "--ro-bind", where, where, argument=f"{tmp_path}/database:{tmp_path}/files")
    assert output.startswith(f"cannot be written | {where}"), output
    assert "owner, rights and mount" in output


FULL = textwrap.dedent(
    """
    import os, sys
    from pathlib import Path
    from data_builders import open_manager, record_group
    from dart_train.data.maintenance.integrity_check import check_run

    root = Path(sys.argv[1])
    data = open_manager(root)
    record_group(data, "g")
    ballast = os.open(root / "ballast", os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(ballast, os.urandom(1 << 12))
    except OSError:
        pass
    for finding in check_run(data, least_free_bytes=0).findings:
        print(finding.problem.value, "|", finding.detail)
    """
)


@pytest.mark.process
def test_a_full_disk_is_found(sandboxed):
    output = sandboxed(FULL, "--size", str(4 << 20), "--tmpfs", "/mnt", argument="/mnt")
    assert "disk nearly full | no space left on the device" in output, output


def test_a_database_that_cannot_be_opened_is_found(tmp_path):
    (tmp_path / "dart.sqlite").write_bytes(b"no database " * 1000)
    with pytest.raises(DataError) as caught:
        DataManager.open(f"sqlite:///{tmp_path}/dart.sqlite", tmp_path / "files", RUN)
    assert unopened(caught.value, "here").counts() == {"database damaged": 1}
    for error, problem in (
        (SchemaError("other"), Problem.WRONG_SCHEMA),
        (DatabaseGoneError("gone"), Problem.UNREACHABLE),
        (ReadOnlyError("no"), Problem.UNWRITABLE),
        (DiskFullError("full"), Problem.LOW_SPACE),
    ):
        assert unopened(error, "here").findings[0].problem is problem
