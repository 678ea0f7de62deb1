"""Versions and states in an object store: whole or not there, fetched once by a node, and kept while they are used."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dart_train.core.digests import write_digests
from dart_train.core.train_errors import CheckpointError
from dart_train.data.files import shared_directories
from dart_train.data.files.object_storage import ObjectStore, open_storage
from dart_train.data.files.shared_directories import fetch, place, share, unshare

pytestmark = pytest.mark.thorough


@pytest.fixture
def store(bucket, tmp_path) -> ObjectStore:
    return open_storage(f"{bucket}/{tmp_path.name}")


def version(folder: Path, name: str = "v000003") -> Path:
    directory = folder / name
    (directory / "parts").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(os.urandom(100_000))
    (directory / "parts" / "one").write_text("part")
    write_digests(directory)
    return directory


def test_what_is_shared_is_fetched_whole(store, tmp_path):
    made = version(tmp_path / "trainer")
    url = place(store, "versions", made)
    share(store, "versions", made)
    found = fetch(url, tmp_path / "node")
    assert found == tmp_path / "node" / "v000003"
    assert (found / "model.safetensors").read_bytes() == (made / "model.safetensors").read_bytes()
    assert (found / "parts" / "one").read_text() == "part"
    assert fetch(url, tmp_path / "node", [tmp_path / "trainer"]) == made  # where it was made it is not fetched


def test_a_directory_needs_no_store(tmp_path):
    made = version(tmp_path)
    storage = open_storage(tmp_path / "files")
    assert place(storage, "versions", made) == str(made) == str(fetch(str(made), tmp_path / "node"))
    share(storage, "versions", made)
    assert not (tmp_path / "files").exists()


def test_many_processes_of_a_node_fetch_a_version_once(store, tmp_path, monkeypatch):
    made, downloads = version(tmp_path / "trainer"), []
    share(store, "versions", made)
    real = ObjectStore.download
    monkeypatch.setattr(ObjectStore, "download", lambda *given: (downloads.append(given[1]), real(*given)))
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: fetch(place(store, "versions", made), tmp_path / "node"), range(8)))
    assert len(found) == 1 and len(downloads) == 3


@pytest.mark.parametrize("fault", ["half", "removed", "damaged"])
def test_what_is_not_whole_is_not_had(store, tmp_path, fault):
    made = version(tmp_path / "trainer")
    share(store, "versions", made)
    if fault == "half":  # its writer was killed before the list
        store.remove(f"versions/v000003/{shared_directories.LIST}")
    elif fault == "removed":
        unshare(store, "versions", "v000003")
        assert not list(store.entries("versions"))
    else:
        store.write("versions/v000003/model.safetensors", bytes(100_000))
    with pytest.raises(CheckpointError, match="not what was written" if fault == "damaged" else "is not there"):
        fetch(place(store, "versions", made), tmp_path / "node")
    assert not [path for path in (tmp_path / "node").iterdir() if path.is_dir()]


def test_a_node_keeps_what_it_used_last(store, tmp_path):
    urls = []
    for number in range(4):
        made = version(tmp_path / "trainer", f"v{number:06d}")
        share(store, "versions", made)
        urls.append(place(store, "versions", made))
    for moment, url in enumerate([urls[0], urls[1], urls[2], urls[0]]):
        os.utime(fetch(url, tmp_path / "node", keep=3), (moment, moment))
    fetch(urls[3], tmp_path / "node", keep=3)
    left = {path.name for path in (tmp_path / "node").iterdir() if path.is_dir()}
    assert left == {"v000000", "v000002", "v000003"}
