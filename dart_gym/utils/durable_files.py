"""Files that a power cut cannot take back: whole under their name or not there, and on the disk once that is reported.

A name is safe only when three things are on the disk: the bytes, the name in its directory, and the names of the
directories above that were made for it. `os.rename` alone promises none of them.

Invariants:
    - What has its final name was synced before it got it: no crash shows a name of half a file.
    - When a call here returns, what it wrote outlives a power cut; so call it before a row or a reply says that it did.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_THREADS = 4
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EROFS, errno.EACCES)


def write_file(path: Path, data: bytes | str, *, mode: int | None = None) -> None:
    """Replace a file, whole or not at all; after an error no temporary file is left. Raises `OSError`."""
    descriptor, name = tempfile.mkstemp(prefix=f".tmp-{path.name}-", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fchmod(file.fileno(), _usual_mode() if mode is None else mode)
            os.fsync(file.fileno())
        rename(Path(name), path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def rename(source: Path, target: Path) -> None:
    """Give something that is synced its final name, on the disk when this returns. Raises `OSError` as `os.rename`."""
    os.rename(source, target)
    sync_directories({source.parent, target.parent})


def publish_directory(made: Path, target: Path) -> None:
    """Give a complete directory its final name, with all in it on the disk. Raises `OSError` as `os.rename`."""
    sync_tree(made)
    rename(made, target)


@contextlib.contextmanager
def only_maker(target: Path) -> Iterator[None]:
    """Let one process at a time make something, while others wait; one that dies holds nobody up."""
    make_directories(target.parent)
    with open(target.parent / f".{target.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_directories(path: Path) -> None:
    """Make a directory and those above it that are missing, each on the disk in the one that holds it."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directories([directory.parent])


def sync_tree(root: Path) -> None:
    """Bring everything below a directory to the disk, and what it is called. Links stay links."""
    directories, files = [], []
    for parent, _, names in os.walk(root):
        directories.append(Path(parent))
        files += [Path(parent, name) for name in names if not os.path.islink(os.path.join(parent, name))]
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(_sync, files))
    sync_directories(reversed(directories))


def sync_directories(directories: Iterable[Path]) -> None:
    """Bring the names in directories to the disk."""
    for directory in directories:
        _sync(directory)


def digests(root: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of files below a directory, by name; "" for one that cannot be read. Files are read side by side."""
    names = list(names)
    with ThreadPoolExecutor(_THREADS) as threads:
        return dict(zip(names, threads.map(lambda name: _digest(root / name), names), strict=True))


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def remove_tree(directory: Path, aside: Path) -> None:
    """Delete a directory so that its name never stands for half of it, by a name `aside` that nobody reads."""
    shutil.rmtree(aside, ignore_errors=True)
    rename(directory, aside)
    shutil.rmtree(aside)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:  # some network file systems have no sync of a directory
            raise
    finally:
        os.close(descriptor)


def _usual_mode() -> int:
    """Return what `open` would give: there is no way to ask for the mask without setting it."""
    with open("/proc/self/status", encoding="ascii") as status:
        mask = next(line for line in status if line.startswith("Umask:"))
    return 0o666 & ~int(mask.split()[1], 8)
