"""A private directory for Unix sockets with a short path, that does not outlive its process for long.

Invariants:
    - Its name says which process owns it: process id and start time, which together are never reused.
    - It is removed at the end; after a `kill -9` the next one that is made removes it.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dart_gym.utils.processes import has_ended, start_time

PREFIX = "dart-engines-"


@contextmanager
def socket_directory() -> Iterator[Path]:
    """Make the directory, readable by this user alone, and remove it afterwards."""
    base = Path(tempfile.gettempdir())
    for path in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # its owner, or another process, may be removing it as well
            if path.stat().st_uid == os.getuid() and not owner_lives(path.name):
                shutil.rmtree(path, ignore_errors=True)
    pid = os.getpid()
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{pid}-{start_time(pid)}-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def owner_lives(name: str) -> bool:
    """Whether the process that a directory's name tells of is still there; True for names of another make."""
    pid, _, rest = name.removeprefix(PREFIX).partition("-")
    started = rest.partition("-")[0]
    if not pid.isdigit() or not started.isdigit():
        return True
    return not has_ended(int(pid), int(started))
