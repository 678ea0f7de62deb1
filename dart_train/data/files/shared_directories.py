"""Directories in an object store: versions and states of the trainer, put there by one node and fetched by others.

Invariants:
    - A directory counts once its list of files is there, which is written last and removed first.
    - A node fetches a directory once, however many of its processes ask at the same time; what has its name is whole.
"""

import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dart_gym.utils.durable_files import only_maker, publish_directory
from dart_train.core.digests import why_changed
from dart_train.core.train_errors import CheckpointError, DiskFullError
from dart_train.data.files.object_storage import ObjectStore, Storage, open_storage

LIST = "files.json"
REQUESTS = 4  # at the same time; each is a large file
KEPT = 4
"""Fetched directories that stay on a node; the one used last goes last."""


def place(storage: Storage, folder: str, directory: str | Path) -> str:
    """URL that a directory has, or will have, for other nodes; its own path where files lie in a directory."""
    if not isinstance(storage, ObjectStore) or "://" in str(directory):
        return str(directory)
    return storage.name(f"{folder}/{Path(directory).name}")


def share(storage: Storage, folder: str, directory: Path) -> None:
    """Put a whole directory into an object store; nothing happens where files lie in a directory."""
    if not isinstance(storage, ObjectStore):
        return
    files = {str(path.relative_to(directory)): path for path in sorted(directory.rglob("*")) if path.is_file()}
    key = f"{folder}/{directory.name}"
    with ThreadPoolExecutor(REQUESTS) as threads:
        list(threads.map(lambda name: storage.upload(f"{key}/{name}", files[name]), files))
    storage.write(f"{key}/{LIST}", json.dumps({name: path.stat().st_size for name, path in files.items()}).encode())


def unshare(storage: Storage, folder: str, name: str) -> None:
    """Remove a directory from an object store, its list first."""
    if isinstance(storage, ObjectStore):
        storage.remove(f"{folder}/{name}/{LIST}")
        for entry in storage.entries(f"{folder}/{name}"):
            storage.remove(entry.key)


def fetch(url: str, into: Path, known: Sequence[Path] = (), *, keep: int = KEPT) -> Path:
    """The copy of a shared directory on this node.

    Args:
        url: where it is, as of `place`; a path is returned as it is.
        into: where copies lie; the oldest beyond `keep` are removed.
        known: other places of this node where it may already be complete, such as the trainer's own directory.
        keep: copies that stay.

    Raises:
        CheckpointError: it is not there any more, or what came is not what was put there.
        DataError: the store cannot be reached, or the disk is full.
    """
    if "://" not in url:
        return Path(url)
    root, _, name = url.rpartition("/")
    for parent in (*known, into):
        if (parent / name).is_dir():
            if parent == into:
                os.utime(parent / name)
            return parent / name
    with only_maker(into / name):
        if not (into / name).is_dir():
            _download(root, name, into)
    for old in sorted(_copies(into), key=lambda path: path.stat().st_mtime, reverse=True)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
        (into / f".{old.name}.lock").unlink(missing_ok=True)
    return into / name


def _copies(into: Path) -> list[Path]:
    return [path for path in into.iterdir() if path.is_dir() and not path.name.startswith(".")]


def _download(root: str, name: str, into: Path) -> None:
    storage, temporary = open_storage(root), into / f".tmp-{name}"
    assert isinstance(storage, ObjectStore)  # a URL
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed: we have the lock
    try:
        sizes = json.loads(storage.read(f"{name}/{LIST}"))
        for file in sizes:
            (temporary / file).parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(into).free < sum(sizes.values()):
            raise DiskFullError(into / name)
        with ThreadPoolExecutor(REQUESTS) as threads:
            list(threads.map(lambda file: storage.download(f"{name}/{file}", temporary / file), sizes))
        short = [file for file, size in sizes.items() if (temporary / file).stat().st_size != size]
        if wrong := f"{short[0]} has another size" if short else why_changed(temporary):
            raise CheckpointError(f"{root}/{name}: {wrong} after it was fetched; it is fetched again next time")
        publish_directory(temporary, into / name)
    except FileNotFoundError as error:
        raise CheckpointError(f"{root}/{name} is not there, or is being removed: a newer one is") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
