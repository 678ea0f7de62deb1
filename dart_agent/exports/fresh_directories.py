"""Directories that an export fills: never one that holds something already, and never a half of one."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from dart_agent.episodes.episode_files import RecordError


@contextlib.contextmanager
def fresh_directory(out: Path) -> Iterator[Path]:
    """Yield a directory to write into, which becomes `out` once everything is written.

    Raises:
        RecordError: if `out` holds something already, or cannot be written.
    """
    partial = out.with_name(out.name + ".partial")
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RecordError(f"{out} holds something already, which is not replaced: name a new directory")
        if partial.exists():  # of an export that was killed
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        try:
            yield partial
            if out.exists():
                out.rmdir()
            partial.rename(out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise RecordError(f"cannot write {out} ({error}): check space, owner and rights") from error
