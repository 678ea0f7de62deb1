"""The option `--json FILE` of commands that print a table: the same rows for programs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dart_gym.core.errors import ConfigurationError

JsonOption = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the rows to this file.")]


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
