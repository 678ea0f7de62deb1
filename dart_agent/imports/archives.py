"""Archives of others, unpacked below one directory and nowhere else.

Invariants:
    - Only files and directories are unpacked. An archive with a link, a device, or a name that leads outside is refused
      before any file is written.
    - What unpacks to more than `RATIO` times the archive's size plus `ALLOWANCE` is refused.
"""

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from dart_agent.episodes.episode_files import RecordError

RATIO, ALLOWANCE = 100, 64 << 20
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError, ValueError)
_TWO_KINDS = (NotADirectoryError, IsADirectoryError, FileExistsError)
"""A name that is a file, and a directory as well."""


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive that `unpack` reads."""
    return path.is_file() and (zipfile.is_zipfile(path) or tarfile.is_tarfile(path))


def unpack(path: Path, into: Path) -> None:
    """Unpack a zip or tar archive.

    Raises:
        RecordError: if the archive is damaged, too large, or leads outside.
    """
    most = ALLOWANCE + RATIO * path.stat().st_size
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                _check(path, ((one.filename, one.file_size, _plain(one)) for one in packed.infolist()), most)
                packed.extractall(into)
        else:
            with tarfile.open(path) as tar:
                _check(path, ((one.name, one.size, one.isreg() or one.isdir()) for one in tar), most)
                _write(tar, into)
    except (*_DAMAGED, *_TWO_KINDS) as error:
        shutil.rmtree(into, ignore_errors=True)
        raise RecordError(f"cannot unpack {path}: {error}") from error


def _write(tar: tarfile.TarFile, into: Path) -> None:
    """Write the files of an archive as files of ours: before Python 3.11.4 (Debian 12) `extractall` has no filter."""
    for member in tar:
        target = into / member.name
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        source = tar.extractfile(member)
        assert source is not None  # it is a file
        target.parent.mkdir(parents=True, exist_ok=True)
        with source, target.open("wb") as file:
            shutil.copyfileobj(source, file)


def _plain(member: zipfile.ZipInfo) -> bool:
    kind = member.external_attr >> 28  # the type of a file in the mode that Unix writes; 0 where another system did
    return kind in (0, 0o04, 0o10)


def _check(path: Path, members: Iterable[tuple[str, int, bool]], most: int) -> None:
    size = 0
    for name, length, plain in members:
        parts = PurePosixPath(name.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or ":" in name[:2]:
            raise RecordError(f"{path} holds {name[:100]!r}, which leads outside: nothing was unpacked")
        if not plain:
            raise RecordError(f"{path} holds {name[:100]!r}, which is no file: nothing was unpacked")
        size += length
        if size > most:
            raise RecordError(f"{path} unpacks to more than {most} bytes: unpack it yourself if you trust it")
