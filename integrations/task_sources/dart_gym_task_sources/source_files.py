"""The files of a source: a directory, a zip or tar archive, a table, or any of them at a URL that fsspec knows.

Invariants:
    - Files are read one after the other, and nothing is written: no archive can put a file anywhere.
    - Paths and links that lead out of a source, and files too large, come without content and with the reason.
    - Archives count as directories at the top of a source and in its folder `artifacts`; deeper ones are plain files.
"""

import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from dart_gym.core.errors import MissingDependencyError, TaskError

LARGEST_FILE = 64 << 20
LARGEST_SOURCE = 32 << 30
_ARCHIVE = re.compile(r"\.(zip|tar(\.(gz|bz2|xz|zst))?|tgz)$")
Found = tuple[str, bytes, str]
"""Path ("/" first), content, and what is wrong with it ("" where nothing is)."""


def walk(source: str) -> Iterator[Found]:
    """All files of a source. Raises `TaskError`: it is not there, damaged, or too large; `MissingDependencyError`."""
    total = 0
    try:
        for path, data, problem in _remote(source) if "://" in source else _local(Path(source)):
            total += len(data)
            if total > LARGEST_SOURCE:
                raise TaskError(f"{source} holds more than {LARGEST_SOURCE >> 30} GiB: import parts of it")
            if path.startswith("/") or ".." in path.split("/") or "\0" in path:
                data, problem = b"", f"the path {path!r} leads out of it"
            yield "/" + path.removeprefix("./"), data, problem
    except (OSError, EOFError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise TaskError(f"{source} cannot be read: {type(error).__name__}: {error}") from error


def _local(root: Path) -> Iterator[Found]:
    if root.is_file():
        yield from _file(root.name, lambda: root.open("rb"), archive=True)
        return
    if not root.is_dir():
        raise TaskError(f"there is no directory or file {root} to import from")
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            yield name, b"", f"{name!r} is a link to {path.readlink()}"
        elif path.is_file():
            yield from _file(name, lambda path=path: path.open("rb"), archive=_counts_as_directory(name))  # type: ignore[misc]


def _remote(url: str) -> Iterator[Found]:
    try:
        import fsspec

        files, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingDependencyError(f"{url} needs fsspec: {error}; next step: pip install fsspec and that") from error
    for path in files.find(root):
        name = PurePosixPath(path).relative_to(root).as_posix() if path != root else PurePosixPath(path).name
        open_it: Callable[[], Any] = lambda path=path: files.open(path, "rb")  # noqa: E731
        yield from _file(name, open_it, archive=path == root or _counts_as_directory(name))


def _counts_as_directory(name: str) -> bool:
    return "/" not in name or name.startswith("artifacts/") and name.count("/") == 1


def _file(name: str, open_it: Callable[[], IO[bytes]], *, archive: bool) -> Iterator[Found]:
    found = _ARCHIVE.search(name) if archive else None
    with open_it() as stream:
        if found is None:
            yield name, *_limited(stream)
        elif found[1] == "zip":
            with zipfile.ZipFile(stream) as members:
                for item in members.infolist():
                    if item.external_attr >> 16 & 0o170000 == 0o120000:
                        yield item.filename, b"", f"{item.filename!r} is a link"
                    elif not item.is_dir():
                        with members.open(item) as content:
                            yield item.filename, *_limited(content)
        else:
            with tarfile.open(fileobj=_plain(stream) if found[1].endswith("zst") else stream, mode="r|*") as members:
                for item in members:
                    if item.isfile() and (content := members.extractfile(item)) is not None:
                        yield item.name, *_limited(content)
                    elif not item.isdir():
                        yield item.name, b"", f"{item.name!r} is a link or a device"


def _limited(stream: IO[bytes]) -> tuple[bytes, str]:
    data = stream.read(LARGEST_FILE + 1)
    return (data, "") if len(data) <= LARGEST_FILE else (b"", f"a file is larger than {LARGEST_FILE >> 20} MiB")


def _plain(stream: IO[bytes]) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingDependencyError("a .zst archive needs pyarrow; next step: pip install pyarrow") from error
    return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(stream, "r"), "zstd"))


def table_rows(data: bytes) -> Iterator[dict[str, Any]]:
    """The rows of a parquet file. Raises `MissingDependencyError`, `TaskError`: pyarrow cannot read it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError("a parquet file needs pyarrow; next step: pip install pyarrow") from error
    try:
        for batch in pyarrow.parquet.ParquetFile(io.BytesIO(data)).iter_batches():
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise TaskError(f"the parquet file cannot be read: {error}") from error
