"""Directory and object store behave alike; the object store is S3's protocol on a local server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from data_builders import RUN, SMALL, make_step, make_trajectory, picture

from dart_gym.utils.png import encode_png
from dart_train.core.train_errors import CorruptDataError, DataError, ReadOnlyError, StorageGoneError
from dart_train.data import DataManager, image_hash
from dart_train.data.files.object_storage import Storage, open_storage
from dart_train.data.files.trajectory_files import TrajectoryFiles, image_key
from tests.helpers.object_store import s3_bucket


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.thorough)])
def root(request, tmp_path) -> str:
    if request.param == "directory":
        return str(tmp_path / "data")
    return f"{request.getfixturevalue('s3_url')}/{tmp_path.name}"


@pytest.fixture
def storage(root) -> Storage:
    return open_storage(root)


def test_what_is_written_is_read_back_listed_and_removed(storage):
    before = time.time() - 60
    storage.write("images/ab/one.png", b"first")
    storage.write("images/ab/one.png", b"second")
    storage.write("images/cd/two.png", b"other")
    assert storage.read("images/ab/one.png") == b"second"
    found = {entry.key: entry.size for entry in storage.entries("images")}
    assert found == {"images/ab/one.png": 6, "images/cd/two.png": 5}
    assert storage.entry("images/ab/one.png").modified > before
    assert storage.remove("images/ab/one.png")
    assert not storage.remove("images/ab/one.png")
    assert storage.entry("images/ab/one.png") is None
    assert list(storage.entries("nothing")) == []
    with pytest.raises(FileNotFoundError):
        storage.read("images/ab/one.png")


def test_publishing_never_overwrites_unless_told(storage):
    storage.write("trajectories/seen/x", b"")  # a directory has its parent made on opening the files
    assert storage.publish("trajectories/t/trajectory.msgpack", b"first")
    assert not storage.publish("trajectories/t/trajectory.msgpack", b"second")
    assert storage.read("trajectories/t/trajectory.msgpack") == b"first"
    assert storage.publish("trajectories/t/trajectory.msgpack", b"third", replace=True)
    assert storage.read("trajectories/t/trajectory.msgpack") == b"third"


def test_writers_that_replace_at_once_do_not_hinder_one_another(tmp_path):
    storage = open_storage(str(tmp_path))

    def publish(writer: int) -> None:
        for _ in range(100):
            storage.publish("trajectories/t/a", bytes([writer]), replace=True)

    storage.write("trajectories/seen/x", b"")
    with ThreadPoolExecutor(4) as writers:
        list(writers.map(publish, range(4)))
    assert storage.read("trajectories/t/a") in {bytes([writer]) for writer in range(4)}


def test_a_touch_makes_it_young(storage):
    storage.write("images/ab/one.png", b"bytes")
    if storage.directory:
        os.utime(storage.directory / "images/ab/one.png", (1.0, 1.0))
    old = storage.entry("images/ab/one.png")
    storage.touch(old)
    assert storage.entry("images/ab/one.png").modified >= max(old.modified, time.time() - 60)
    assert storage.read("images/ab/one.png") == b"bytes"


def test_a_run_records_leases_and_trains_wherever_its_files_are(root, tmp_path):
    image = picture(5)
    name = image_hash(image)
    url = f"sqlite:///{tmp_path}/dart.sqlite"
    with DataManager.open(url, root, RUN, config=SMALL) as data:
        steps = (make_step(0, (name,)),)
        for member, reward in (("a", 0.0), ("b", 1.0)):
            trajectory = make_trajectory(member, "g", reward, steps=steps)
            data.record(trajectory, {name: image})
            assert data.record(trajectory, {name: image}) == "recorded"  # again: nothing changes
        assert len(list(data.files.stored_trajectories())) == 2
        assert [found for found, _ in data.files.stored_images()] == [name]
    with DataManager.open(url, root, RUN, config=SMALL) as trainer:
        leased = trainer.lease(1, "trainer")
        assert [item.trajectory_id for item in leased.groups[0].trajectories] == ["a", "b"]
        assert (trainer.load_image(name) == image).all()
        leased.commit(0)
    reopened = TrajectoryFiles(root)
    reopened.storage.remove(image_key(name))
    with pytest.raises(CorruptDataError, match=name):
        reopened.check_images([name])
    assert reopened.remove_trajectory("a")
    with pytest.raises(CorruptDataError, match="trajectories/a"):
        reopened.read_trajectory("a")


@pytest.mark.parametrize("image_format", ["png", "webp"])
def test_images_come_back_pixel_for_pixel_in_either_format(root, image_format):
    files = TrajectoryFiles(root, image_format=image_format)
    image = picture(3, 40, 60) // 64 * 64
    name = image_hash(image)
    files.write_images({name: image})
    assert files.find_image(name).key.endswith(image_format)
    assert (files.read_image(name) == image).all()


def test_large_screenshots_are_webp_and_small_ones_png_whether_packed_or_not(root):
    files = TrajectoryFiles(root)
    small, large = picture(3, 40, 60) // 64 * 64, np.zeros((1080, 1920, 3), np.uint8)
    packed = np.full_like(large, 255)
    names = [image_hash(image) for image in (small, large, packed)]
    files.write_images(dict(zip(names, (small, large, encode_png(packed)), strict=True)))
    assert [files.find_image(name).key.rpartition(".")[2] for name in names] == ["png", "webp", "webp"]
    for name, image in zip(names, (small, large, packed), strict=True):
        assert (files.read_image(name) == image).all()


@pytest.mark.thorough
def test_no_bucket_and_no_server_are_said(s3_url, monkeypatch):
    with pytest.raises(StorageGoneError, match="no such bucket"):
        open_storage("s3://nobody-made-this").write("a/b", b"x")
    unreachable = {"endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 1}}}
    with pytest.raises(StorageGoneError, match="cannot be reached"):
        open_storage(s3_url, unreachable).write("a/b", b"x")


@pytest.mark.thorough
def test_a_store_that_refuses_is_said(s3_url):
    def demand_known_keys(after_requests: float) -> None:
        """Tell the server to look at credentials from its next request on; it knows none."""
        address = f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset-auth"
        httpx.post(address, content=str(after_requests)).raise_for_status()

    storage = open_storage(f"{s3_url}/refused")
    storage.write("a/b", b"x")
    demand_known_keys(0)
    try:
        with pytest.raises(ReadOnlyError, match="credentials"):
            storage.write("a/b", b"x")
    finally:
        demand_known_keys(float("inf"))
    assert storage.read("a/b") == b"x"


@pytest.mark.parametrize("url", ["nosuch://bucket/x", "gs://bucket/x"])
def test_unknown_protocols_and_missing_packages_are_said(url):
    with pytest.raises(DataError, match="protocol|install"):
        open_storage(url)


def test_a_writable_store_is_left_as_it_was(storage: Storage, root: Callable):
    storage.check_writable()
    assert list(storage.entries("")) == []
