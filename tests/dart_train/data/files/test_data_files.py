from __future__ import annotations

import io
import os
import textwrap
import time

import numpy as np
import pytest
from data_builders import make_step, make_trajectory, picture
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dart_gym.utils.png import encode_png
from dart_train.core.train_errors import CorruptDataError, InvalidTrajectoryError
from dart_train.data.files.trajectory_files import (
    TrajectoryFiles,
    image_hash,
    pack_trajectory,
    unpack_trajectory,
)
from tests.helpers.stored_files import image_path, trajectory_path


@pytest.fixture
def files(tmp_path) -> TrajectoryFiles:
    return TrajectoryFiles(tmp_path / "data")


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=settings().max_examples // 2)
def test_png_decodes_to_the_same_pixels(height, width, seed):
    image = picture(seed, height, width)
    with Image.open(io.BytesIO(encode_png(image))) as decoded:
        assert decoded.mode == "RGB"
        assert np.array_equal(np.asarray(decoded), image)


def test_hash_is_of_shape_and_pixels_whatever_the_memory_layout():
    image = picture(1, 12, 8)
    view = np.asfortranarray(image)
    assert image_hash(image) == image_hash(view) == image_hash(image[:, ::-1][:, ::-1])
    assert image_hash(image) != image_hash(image.reshape(8, 12, 3))
    changed = image.copy()
    changed[0, 0, 0] ^= 1
    assert image_hash(image) != image_hash(changed)


def test_an_image_is_stored_once(files, tmp_path):
    image = picture()
    name = image_hash(image)
    files.write_images({name: image})
    before = image_path(files, name).stat().st_mtime_ns
    TrajectoryFiles(tmp_path / "data").write_images({name: image})
    assert image_path(files, name).stat().st_mtime_ns == before
    assert files.has_image(name)
    loaded = files.read_image(name)
    assert np.array_equal(loaded, image)
    assert not loaded.flags.writeable


def test_an_image_that_changed_after_hashing_is_refused(files):
    image = picture()
    name = image_hash(image)
    image[0, 0] = 255 - image[0, 0]
    with pytest.raises(InvalidTrajectoryError, match="not changed afterwards"):
        files.write_images({name: image})
    with pytest.raises(InvalidTrajectoryError, match="uint8"):
        files.write_images({"0" * 32: np.zeros((4, 4), np.uint8)})


@pytest.mark.parametrize("damage", ["truncated", "other pixels", "empty", "gone", "no image"])
def test_damaged_images_are_noticed(files, damage):
    image = picture()
    name = image_hash(image)
    files.write_images({name: image})
    path = image_path(files, name)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage == "other pixels":
        path.write_bytes(encode_png(picture(2)))
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else b"hello")
    with pytest.raises(CorruptDataError, match=name) as caught:
        files.read_image(name)
    assert caught.value.path == path


trajectories = st.builds(
    make_trajectory,
    name=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._=+-]{0,40}", fullmatch=True),
    group=st.text(max_size=20),
    reward=st.none() | st.floats(0, 1),
    instruction=st.text(),
    seed=st.integers(0, 2**62),
    steps=st.lists(
        st.builds(
            make_step,
            version=st.integers(0, 1000),
            images=st.lists(st.from_regex(r"[0-9a-f]{32}", fullmatch=True), max_size=3).map(tuple),
            text=st.text(),
            thought=st.text(),
            logprobs=st.lists(st.floats(allow_nan=False), max_size=5).map(tuple),
            actions=st.lists(st.dictionaries(st.text(), st.integers(0, 9) | st.text()), max_size=2).map(tuple),
        ),
        max_size=4,
    ).map(tuple),
    timings=st.dictionaries(st.text(), st.floats(0, 1e6)),
)


@pytest.mark.thorough
@given(trajectories)
def test_trajectories_survive_packing(trajectory):
    assert unpack_trajectory(pack_trajectory(trajectory)) == trajectory


def test_a_trajectory_is_a_directory_that_appears_whole(files):
    trajectory = make_trajectory("t1")
    assert files.write_trajectory(trajectory)
    assert files.read_trajectory("t1") == trajectory
    assert os.listdir(files.root / "trajectories") == ["t1"]
    assert not files.write_trajectory(trajectory)
    assert os.listdir(files.root / "trajectories") == ["t1"]


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "-rf", "a" * 192, "a\n", "a b", "ä"])
def test_ids_that_are_no_safe_names_are_refused(files, name):
    with pytest.raises(InvalidTrajectoryError, match="safe directory name"):
        files.write_trajectory(make_trajectory(name))


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x80", b"\x93\x01\x02\x03", b"\x81\xa1a\x01"])
def test_damaged_trajectories_are_noticed(files, content):
    files.write_trajectory(make_trajectory("t1"))
    (trajectory_path(files, "t1") / "trajectory.msgpack").write_bytes(content)
    with pytest.raises(CorruptDataError, match="t1"):
        files.read_trajectory("t1")


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(tmp_path_factory, content):
    files = TrajectoryFiles(tmp_path_factory.getbasetemp() / "fuzz")
    trajectory_path(files, "t").mkdir(exist_ok=True)
    (trajectory_path(files, "t") / "trajectory.msgpack").write_bytes(content)
    with pytest.raises(CorruptDataError):
        files.read_trajectory("t")


def test_leftovers_of_killed_processes_are_removed_once_old(files):
    old = files.root / "trajectories" / ".tmp-1-dead-1"
    old.mkdir()
    (old / "trajectory.msgpack").write_bytes(b"half")
    image = files.root / "images" / "ab" / ".tmp-1-dead-2"
    image.parent.mkdir()
    image.write_bytes(b"half")
    files.write_trajectory(make_trajectory("t1"))
    assert files.remove_leftovers(older_than_s=600) == 0
    long_ago = time.time() - 3600
    os.utime(old, (long_ago, long_ago))
    os.utime(image, (long_ago, long_ago))
    assert files.remove_leftovers(older_than_s=600) == 2
    assert os.listdir(files.root / "trajectories") == ["t1"]


FULL_DISK = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from data_builders import make_step, make_trajectory, open_manager, picture, record_with_image
    from dart_train.core.train_errors import DiskFullError

    data, count = open_manager(Path(sys.argv[1])), 0
    try:
        for count in range(1000):
            record_with_image(data, f"t{count}", f"g{count}", picture(count, 100, 100))
        print("never full")
    except DiskFullError as error:
        stored = list(data.trajectories())
        assert all(data.load_image(step.image_hashes[0]).any() for t in stored for step in t.steps)
        assert len(stored) == count, (len(stored), count)
        assert not list(data.files.root.rglob(".tmp-*"))
        print("full:", error)
    """
)


@pytest.mark.thorough
@pytest.mark.process
def test_a_full_disk_is_said_and_costs_nothing_recorded_before(sandboxed):
    output = sandboxed(FULL_DISK, "--size", str(6 << 20), "--tmpfs", "/mnt", argument="/mnt")
    assert output.startswith("full: no space left on the device while writing /mnt/data/"), output
    assert "free some space" in output


READ_ONLY = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from data_builders import make_trajectory, open_manager
    from dart_train.core.train_errors import ReadOnlyError

    try:
        open_manager(Path(sys.argv[1])).record(make_trajectory("t"))
    except ReadOnlyError as error:
        print("read-only:", error)
    """
)


@pytest.mark.process
@pytest.mark.parametrize("used_before", [True, False])
def test_a_read_only_directory_is_said(sandboxed, tmp_path, used_before):
    if used_before:
        TrajectoryFiles(tmp_path / "data")
    output = sandboxed(READ_ONLY, "--ro-bind", str(tmp_path), str(tmp_path), argument=str(tmp_path))
    assert output.startswith("read-only: "), output
