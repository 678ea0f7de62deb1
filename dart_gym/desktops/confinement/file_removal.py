"""Removes a directory with everything that a program may have left there.

Invariants:
    - Depth, modes, names and links do not matter: it goes by descriptors of directories, needs no recursion and no
      path but the first, and follows no link.
    - What names the owner of a directory goes last, so that a later clean-up knows whose the rest was.
"""

import contextlib
import itertools
import os
import secrets
import stat
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = getattr(os, "O_PATH", 0) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path, last: str = "") -> bool:
    """Remove a directory, the file `last` in it after all others; whether it is gone. What cannot be removed stays."""
    try:
        top = _opened(os.fspath(path), None)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if not _Removal(top, last).run():
            return False
        if last:
            _unlinked(top, last)
        os.rmdir(path)
    except OSError:
        return False
    finally:
        os.close(top)
    return True


class _Removal:
    """Empties a directory. Those below its own directories move up into it, so that no more than two are ever open."""

    def __init__(self, top: int, last: str) -> None:
        self._top, self._last = top, last
        prefix = secrets.token_hex(8)  # which no program could have taken
        self._names = (f"{prefix}-{number}" for number in itertools.count())
        self._moved = False

    def run(self) -> bool:
        """Return whether all is gone."""
        while True:
            self._moved = False
            for name in os.listdir(self._top):
                if name != self._last:
                    self._remove(name)
            if not self._moved:
                return set(os.listdir(self._top)) <= {self._last}

    def _remove(self, name: str) -> None:
        if _unlinked(self._top, name):
            return
        with contextlib.suppress(OSError):
            directory = _opened(name, self._top)
            try:
                for entry in os.listdir(directory):
                    if not _unlinked(directory, entry):
                        self._move_up(directory, entry)
            finally:
                os.close(directory)
            os.rmdir(name, dir_fd=self._top)

    def _move_up(self, directory: int, entry: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(entry, dir_fd=directory)
            return
        with contextlib.suppress(OSError):
            os.close(_opened(entry, directory))  # its `..` changes, for which it must be writable
            os.rename(entry, next(self._names), src_dir_fd=directory, dst_dir_fd=self._top)
            self._moved = True


def _unlinked(directory: int, name: str) -> bool:
    """Remove an entry unless it is a directory; whether it is gone."""
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        return False
    return True


def _opened(name: str, parent: int | None) -> int:
    """Open a directory, which becomes readable and writable for its owner first."""
    handle = os.open(name, _HANDLE, dir_fd=parent)
    try:
        if os.fstat(handle).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            with contextlib.suppress(OSError):
                os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)
        return os.open(".", _DIRECTORY, dir_fd=handle)
    finally:
        os.close(handle)
