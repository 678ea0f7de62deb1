"""A tar archive from an untrusted source, read with bounded memory: no size in it is believed.

Invariants:
    - A compressed archive is read up to `RATIO` times its size on disk, plus `ALLOWANCE`; a longer one is refused.
    - A member is read whole only up to a size that the caller names, or line by line. So is the data that tar itself
      stores between members (long names, extended headers), which Python's reader would take into memory whole.
    - Only regular files are members. Members that are asked for by name are remembered, all others only counted.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from dart_train.core.train_errors import CorruptDataError

RATIO, ALLOWANCE = 100, 64 << 20
LONGEST_READ = 64 << 20
MOST_MEMBERS = 20_000_000
DAMAGED = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError)
_OPENERS: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


class _Bounded(io.RawIOBase):
    """Reads at most a given number of bytes of a file, in pieces of a given size."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file, self._most = file, most

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET and offset > self._most:
            raise ValueError("it expands to many times its size")
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LONGEST_READ:
            raise ValueError(f"a part has {size} bytes")
        if self._file.tell() + size > self._most:
            raise ValueError("it expands to many times its size")
        return self._file.read(size)


class ForeignArchive:
    """An archive that is open for reading. Make it with `open_archive`; all methods raise `CorruptDataError`."""

    def __init__(self, path: Path, file: IO[bytes], remembered: Callable[[str], bool]) -> None:
        self.path, self._file = path, file
        self._known: dict[str, tarfile.TarInfo] = {}
        with self._explained():
            for member in self._members():
                if remembered(member.name):
                    if member.name in self._known:
                        raise ValueError(f"it has {member.name} twice")
                    self._known[member.name] = member

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DAMAGED as error:
            raise CorruptDataError(self.path, error) from error

    def _members(self) -> Iterator[tarfile.TarInfo]:
        self._file.seek(0)
        self._tar = tarfile.open(fileobj=self._file, mode="r:")  # its file is closed by `open_archive`
        for number, member in enumerate(self._tar):
            if not member.isreg() or member.issparse():
                raise ValueError(f"{member.name[:100]!r} is no regular file")
            if number >= MOST_MEMBERS:
                raise ValueError(f"it has more than {MOST_MEMBERS} files")
            yield member
            self._tar.members = []  # type: ignore[attr-defined]  # it would keep them all

    def files(self, most: Callable[[str], int]) -> Iterator[tuple[str, bytes]]:
        """Names and contents of members of at most `most(name)` bytes; those with a limit of 0 are passed over."""
        with self._explained():
            for member in self._members():
                if limit := most(member.name):
                    yield member.name, self._content(member, limit)

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a remembered member.

        Raises:
            KeyError: if there is no member of this name.
        """
        with self._explained():
            return self._content(self._known[name], most)

    def lines(self, name: str, longest: int) -> Iterator[bytes]:
        """Return the lines of a remembered member.

        Raises:
            KeyError: if there is no member of this name.
        """
        member = self._known[name]
        with self._explained():
            source = cast(IO[bytes], self._tar.extractfile(member))
            while line := source.readline(longest + 1):
                if len(line) > longest:
                    raise ValueError(f"a line of {name} has more than {longest} bytes")
                yield line

    def _content(self, member: tarfile.TarInfo, most: int) -> bytes:
        if member.size > most:
            raise ValueError(f"{member.name[:100]} has {member.size} bytes, and {most} are the most")
        data = cast(IO[bytes], self._tar.extractfile(member)).read(member.size)
        if len(data) != member.size:
            raise ValueError(f"{member.name[:100]} is cut off")
        return data


@contextlib.contextmanager
def open_archive(path: str | Path, remembered: Callable[[str], bool]) -> Iterator[ForeignArchive]:
    """Open an archive, compressed or not, and look at its members once.

    Raises:
        CorruptDataError: if the file is not an archive.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            start = file.read(8)
        opener = next((found for magic, found in _OPENERS.items() if start.startswith(magic)), None)
        size = path.stat().st_size
        opened = path.open("rb") if opener is None else opener(path)
    except OSError as error:
        raise CorruptDataError(path, error) from error
    with opened as file:
        most = size if opener is None else ALLOWANCE + RATIO * size
        yield ForeignArchive(path, cast(IO[bytes], _Bounded(file, most + tarfile.RECORDSIZE)), remembered)
