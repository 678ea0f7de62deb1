"""The option `--json FILE` of commands that print a table: the same rows for programs."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dart_gym.core.errors import ConfigurationError


def placed(path: Path | None) -> Path | None:
    """Return a file's path, once it is known that the file can be written: a command may work for hours before.

    Raises:
        ConfigurationError: if it cannot.
    """
    if path is None:
        return None
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigurationError(f"cannot write {path}: there is no directory {folder}")
    if path.is_dir():
        raise ConfigurationError(f"cannot write {path}: it is a directory")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigurationError(f"cannot write {path}: Permission denied")
    return path


JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", callback=placed, help="Also write the rows to this file."),
]


def write_json(path: Path | None, value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write what a table shows, if a file was named.

    Raises:
        ConfigurationError: if the file cannot be written.
    """
    if path is None:
        return
    try:
        path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
