"""Reading what programs of a desktop have written in a directory that they may change, names and kinds included.

Invariants:
    - A file is opened below a descriptor of a directory, one component at a time, and through no link; it counts only
      if it is a regular file. So neither a link in place of a directory leads elsewhere, nor does a pipe hold one up.
    - Only a bounded part of a file is read.
"""

import os
import stat
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_directory(path: Path) -> int:
    """A descriptor of a directory that no program of a desktop can have replaced, by a path or `/proc/self/fd/N`."""
    return os.open(f"{path}/.", _DIRECTORY)


def open_below(directory: int, *names: str) -> int:
    """Open a regular file below a directory, one name of the path at a time.

    Raises:
        OSError: if there is no such file.
    """
    *folders, name = names
    opened = os.dup(directory)
    try:
        for folder in folders:
            below = os.open(folder, _DIRECTORY, dir_fd=opened)
            os.close(opened)
            opened = below
        fd = os.open(name, _FILE, dir_fd=opened)
    finally:
        os.close(opened)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{name} is no regular file")
    return fd


def read_tail(directory: int, *names: str, most: int) -> str:
    """The last `most` bytes of a file as text, stripped; "" without a file. See `open_below`."""
    try:
        fd = open_below(directory, *names)
    except OSError:
        return ""
    try:
        size = os.fstat(fd).st_size
        return os.pread(fd, most, max(0, size - most)).decode(errors="replace").strip()
    finally:
        os.close(fd)


def tail_of(directory: Path, *names: str, most: int) -> str:
    """`read_tail` below a directory at a path whose last component no program of a desktop can replace."""
    try:
        opened = open_directory(directory)
    except OSError:
        return ""
    try:
        return read_tail(opened, *names, most=most)
    finally:
        os.close(opened)
