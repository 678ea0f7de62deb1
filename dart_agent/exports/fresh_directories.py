"""Directories that an export fills: never one that holds something already, and never a half of one.

Invariant: only files that this export made are removed, regardless of their names.
"""

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from dart_agent.episodes.episode_files import RecordError


@contextlib.contextmanager
def fresh_directory(out: Path) -> Iterator[Path]:
    """Yield a directory to write into, which becomes `out` once everything is written.

    Raises:
        RecordError: if `out` holds something already, or cannot be written.
    """
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RecordError(f"{out} holds something already, which is not replaced: name a new directory")
        with unfinished_beside(out) as partial:
            yield partial
            if out.exists():
                out.rmdir()
            partial.rename(out)
    except OSError as error:
        raise RecordError(f"cannot write {out} ({error}): check space, owner and rights") from error


@contextlib.contextmanager
def unfinished_beside(directory: Path) -> Iterator[Path]:
    """Yield an empty directory beside one, hidden and of a name that nothing else has; it is gone afterwards.

    Raises:
        OSError: if it cannot be made.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = directory.with_name(f".{directory.name[:60]}.{uuid.uuid4().hex[:12]}.partial")
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
