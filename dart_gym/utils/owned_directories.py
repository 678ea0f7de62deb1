"""Temporary directories that do not outlive their process for long.

Invariants:
    - A name says which process owns the directory: pid namespace, process id and start time, which together are never
      used again.
    - It is removed by its owner; after a `kill -9` by the next process of the user that makes one, of whichever kind.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dart_gym.utils.processes import has_ended, own_pid_namespace, start_time

_NAME = re.compile(r"dart-[a-z]+-(\d+)\.(\d+)\.(\d+)-\w+")


def make_owned_directory(kind: str, base: str | None = None) -> Path:
    """Make `dart-<kind>-...`, readable by this user alone, below `base`; remove what dead processes have left there."""
    place = Path(base or tempfile.gettempdir())
    remove_leftovers(place)
    pid = os.getpid()
    owner = f"{own_pid_namespace().strip('pid:[]')}.{pid}.{start_time(pid)}"
    return Path(tempfile.mkdtemp(prefix=f"dart-{kind}-{owner}-", dir=place))


@contextlib.contextmanager
def owned_directory(kind: str) -> Iterator[Path]:
    """Make such a directory, and remove it afterwards."""
    path = make_owned_directory(kind)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_leftovers(base: Path) -> None:
    """Remove this user's directories whose owners have ended."""
    for path in base.glob("dart-*"):
        with contextlib.suppress(OSError):  # its owner, or another process, may be removing it as well
            if not owner_lives(path.name) and path.lstat().st_uid == os.getuid() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)


def owner_lives(name: str) -> bool:
    """Return whether the process that a directory's name tells of is still there; True for names of another make."""
    if (found := _NAME.fullmatch(name)) is None:
        return True
    return not has_ended(int(found[2]), int(found[3]), f"pid:[{found[1]}]")
