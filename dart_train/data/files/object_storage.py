"""Bytes under keys, in a directory or in an object store: the one place that knows fsspec.

Invariants:
    - What can be read under a key is complete: a directory gets it by a rename, an object store by one PUT.
    - What is published or settled outlives a power cut.
    - `publish` never overwrites what is there unless it is told to.
    - What a killed process leaves has a temporary name, which `entries` never shows.
    - Errors of disks and servers leave as `DataError`; only "there is nothing" is a `FileNotFoundError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec

from dart_gym.core.os_remedies import FULL
from dart_gym.utils.durable_files import make_directories, rename, sync_directories
from dart_train.core.train_errors import DataError, DiskFullError, ReadOnlyError, StorageGoneError

_TEMPORARY = ".tmp-"


@dataclass(frozen=True, slots=True)
class Entry:
    """Something stored: its name below the root, with slashes, and the Unix time of the last write or `touch`."""

    key: str
    size: int
    modified: float


def open_storage(root: str | Path, options: dict[str, Any] | None = None) -> Storage:
    """Return the storage of a directory or of an fsspec URL such as `s3://bucket/prefix`.

    Credentials come from where the protocol's own tools look for them (environment, profile, instance role).

    Raises:
        DataError: the protocol is unknown, or a package that it needs is not installed.
    """
    text = str(root)
    if "://" not in text or text.startswith("file://"):
        return Directory(Path(text.removeprefix("file://")).absolute())
    try:
        system, path = fsspec.core.url_to_fs(text, **{"use_listings_cache": False, **(options or {})})
    except ImportError as error:
        raise DataError(f"{text}: {error} (`pip install 'dart-gui[s3]'` brings what s3:// needs)") from error
    except ValueError as error:
        raise DataError(f"{text}: {error}; use a directory, or a URL of a protocol that fsspec knows") from error
    return ObjectStore(system, path, text.rstrip("/"))


class Storage(ABC):
    """What both kinds can do. Thread-safe, for any number of processes; `directory` is the root where that is local."""

    where: str
    directory: Path | None

    def name(self, key: str) -> str:
        """Return a key as a path or URL, for messages and rows."""
        return f"{self.where}/{key}"

    @abstractmethod
    def read(self, key: str) -> bytes:
        """Return what is stored under a key. Raises `FileNotFoundError`."""

    @abstractmethod
    def head(self, key: str, size: int) -> bytes:
        """Return the first bytes of what is stored under a key. Raises `FileNotFoundError`."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Store bytes under a key, over what was there. Only after `settle` does that outlive a power cut."""

    @abstractmethod
    def settle(self, keys: Iterable[str]) -> None:
        """Return when no power cut can take back what is stored under these keys by any process."""

    @abstractmethod
    def publish(self, key: str, data: bytes, *, replace: bool = False) -> bool:
        """Store the only file of a folder for good; False if there is one already and `replace` is not set."""

    @abstractmethod
    def entry(self, key: str) -> Entry | None:
        """Return size and age of what is stored under a key; None if nothing is."""

    @abstractmethod
    def touch(self, entry: Entry) -> None:
        """Make something look as if it was written now."""

    @abstractmethod
    def entries(self, folder: str) -> Iterator[Entry]:
        """Yield everything below a folder, in no order; nothing for a folder that is not there."""

    @abstractmethod
    def remove(self, key: str) -> bool:
        """Remove what is stored under a key (and its folder where that is empty now); False if nothing is."""

    @abstractmethod
    def remove_leftovers(self, older_than_s: float) -> int:
        """Remove what killed processes left under temporary names; return how many there were."""

    def check_writable(self) -> None:
        """Write and remove a small file. Raises the `DataError` that recording would meet."""
        probe = f"probe/{uuid.uuid4().hex}"
        self.write(probe, b"probe")
        self.remove(probe)


class Directory(Storage):
    """A directory on this machine or on a mounted file system."""

    def __init__(self, root: Path) -> None:
        self.where, self.directory = str(root), root
        self._root = root
        self._owner = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._serial = 0
        self._lock = threading.Lock()

    def make(self, *folders: str) -> None:
        """Make folders below the root."""
        with self._explained(self._root):
            for folder in folders:
                make_directories(self._root / folder)

    def read(self, key: str) -> bytes:
        """See `Storage`."""
        return (self._root / key).read_bytes()

    def head(self, key: str, size: int) -> bytes:
        """See `Storage`."""
        with (self._root / key).open("rb") as file:
            return file.read(size)

    def write(self, key: str, data: bytes) -> None:
        """See `Storage`."""
        path = self._root / key
        temporary = self._temporary(path.parent)
        with self._explained(path):
            try:
                try:
                    _write_synced(temporary, data)
                except FileNotFoundError:  # the first of its folder
                    make_directories(temporary.parent)
                    _write_synced(temporary, data)
                temporary.rename(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise

    def settle(self, keys: Iterable[str]) -> None:
        """See `Storage`."""
        with self._explained(self._root):
            for folder in {(self._root / key).parent for key in keys}:
                with contextlib.suppress(FileNotFoundError):  # nothing is stored there
                    sync_directories([folder])

    def publish(self, key: str, data: bytes, *, replace: bool = False) -> bool:
        """See `Storage`."""
        path = self._root / key
        folder = path.parent
        temporary = self._temporary(folder.parent)
        with self._explained(path):
            temporary.mkdir()
            try:
                _write_synced(temporary / path.name, data)
                sync_directories([temporary])
                if replace:
                    with contextlib.suppress(FileNotFoundError):  # none there, or another writer was faster
                        folder.rename(self._temporary(folder.parent))  # collected by `remove_leftovers`
                rename(temporary, folder)
            except OSError as error:
                shutil.rmtree(temporary, ignore_errors=True)
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return False
                raise
        return True

    def entry(self, key: str) -> Entry | None:
        """See `Storage`."""
        with self._explained(self._root / key):
            try:
                found = (self._root / key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return Entry(key, found.st_size, found.st_mtime)

    def touch(self, entry: Entry) -> None:
        """See `Storage`."""
        with self._explained(self._root / entry.key):
            os.utime(self._root / entry.key)

    def entries(self, folder: str) -> Iterator[Entry]:
        """See `Storage`."""
        for parent, folders, names in os.walk(self._root / folder):
            folders[:] = [name for name in folders if not name.startswith(_TEMPORARY)]
            inside = Path(parent).relative_to(self._root).as_posix()
            for name in names:
                entry = None if name.startswith(_TEMPORARY) else self.entry(f"{inside}/{name}")
                if entry is not None:  # else removed meanwhile
                    yield entry

    def remove(self, key: str) -> bool:
        """See `Storage`."""
        path = self._root / key
        with self._explained(path):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
            try:
                path.parent.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise
        return True

    def remove_leftovers(self, older_than_s: float) -> int:
        """See `Storage`."""
        count, before = 0, time.time() - older_than_s
        with self._explained(self._root):
            for parent, folders, names in os.walk(self._root):
                for name in [name for name in (*folders, *names) if name.startswith(_TEMPORARY)]:
                    count += _remove_old(Path(parent) / name, before)
                folders[:] = [name for name in folders if not name.startswith(_TEMPORARY)]
        return count

    def _temporary(self, folder: Path) -> Path:
        with self._lock:
            self._serial += 1
            return folder / f"{_TEMPORARY}{self._owner}-{self._serial}"

    @contextmanager
    def _explained(self, path: Path) -> Iterator[None]:
        """Turn the disk's errors into ones that say what to do."""
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise DiskFullError(path) from error
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise ReadOnlyError(f"{path} cannot be written ({error}): check owner, rights and mount") from error
            raise


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _remove_old(path: Path, before: float) -> bool:
    try:
        if path.stat().st_mtime > before:
            return False
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:  # another process was faster
        return False
    return True


class ObjectStore(Storage):
    """A bucket, or anything else that fsspec reaches and that stores an object by one call."""

    def __init__(self, system: fsspec.AbstractFileSystem, path: str, url: str) -> None:
        self.where, self.directory = url, None
        self._system, self._path = system, path.rstrip("/")
        self._failures: tuple[type[Exception], ...] = (OSError, *_failures_of(url))

    def read(self, key: str) -> bytes:
        """See `Storage`."""
        with self._explained(key):
            return self._system.cat_file(self._full(key))

    def head(self, key: str, size: int) -> bytes:
        """See `Storage`."""
        with self._explained(key):
            return self._system.cat_file(self._full(key), start=0, end=size)

    def write(self, key: str, data: bytes) -> None:
        """See `Storage`."""
        with self._explained(key, bucket_missing=True):
            self._system.pipe_file(self._full(key), data)

    def upload(self, key: str, path: Path) -> None:
        """Store a file, in several parts where it is large; it appears only when it is complete."""
        with self._explained(key, bucket_missing=True):
            self._system.put_file(str(path), self._full(key))

    def download(self, key: str, path: Path) -> None:
        """Write what is stored under a key into a file. Raises `FileNotFoundError`."""
        with self._explained(key):
            self._system.get_file(self._full(key), str(path))

    def settle(self, keys: Iterable[str]) -> None:
        """See `Storage`."""  # what a store has accepted is on its disks

    def publish(self, key: str, data: bytes, *, replace: bool = False) -> bool:
        """See `Storage`."""
        with self._explained(key, bucket_missing=True):
            try:
                self._system.pipe_file(self._full(key), data, mode="overwrite" if replace else "create")
            except FileExistsError:
                return False
        return True

    def entry(self, key: str) -> Entry | None:
        """See `Storage`."""
        with self._explained(key):
            try:
                return self._entry(self._system.info(self._full(key)))
            except FileNotFoundError:
                return None

    def touch(self, entry: Entry) -> None:
        """See `Storage`."""
        self.write(entry.key, self.read(entry.key))  # the same bytes again: stores have no other way that all know

    def entries(self, folder: str) -> Iterator[Entry]:
        """See `Storage`."""
        with self._explained(folder):
            try:
                found = self._system.find(self._full(folder), detail=True)
            except FileNotFoundError:
                return
        yield from (self._entry(info) for info in found.values() if info["type"] == "file")

    def remove(self, key: str) -> bool:
        """See `Storage`."""
        with self._explained(key):
            if self.entry(key) is None:
                return False
            self._system.rm_file(self._full(key))
        return True

    def remove_leftovers(self, older_than_s: float) -> int:
        """See `Storage`."""
        return 0  # an object that was not stored whole is not there

    def _full(self, key: str) -> str:
        return f"{self._path}/{key}"

    def _entry(self, info: dict[str, Any]) -> Entry:
        key = str(info["name"]).lstrip("/").removeprefix(self._path.lstrip("/")).lstrip("/")
        modified = info.get("LastModified", info.get("mtime", info.get("created")))
        seconds = modified.timestamp() if isinstance(modified, datetime) else float(modified or time.time())
        return Entry(key, int(info["size"]), seconds)

    @contextmanager
    def _explained(self, key: str, *, bucket_missing: bool = False) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if not bucket_missing:
                raise
            raise StorageGoneError(f"{self.where}: there is no such bucket ({error}): make it first") from error
        except FileExistsError:
            raise
        except PermissionError as error:
            raise ReadOnlyError(
                f"{self.name(key)}: the store refuses ({error}): check its credentials and the bucket's policy"
            ) from error
        except self._failures as error:
            if getattr(error, "errno", None) in FULL:  # of this machine's disk
                raise DiskFullError(self.name(key)) from error
            raise StorageGoneError(
                f"{self.name(key)}: the store cannot be reached ({error}): check its address, the network and the "
                "credentials; what was stored before is not lost"
            ) from error


def _failures_of(url: str) -> tuple[type[Exception], ...]:
    """Return the errors of a protocol's client other than `OSError`."""
    if not url.startswith(("s3://", "s3a://")):
        return ()
    from botocore.exceptions import BotoCoreError, ClientError

    return (BotoCoreError, ClientError)
