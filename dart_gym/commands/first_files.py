"""What the `init` commands of the three programs write: first files to change, and the JSON schema for an editor.

The files of a kind lie in the package, in `assets/first/KIND`.

Invariants:
    - No file is overwritten: all that would be written are looked at first. A schema that is there and the same stays.
    - What is written is what the program reads: tests give every kind to the command that its next step names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from dart_gym.core.errors import ConfigurationError
from dart_gym.core.project_pages import page, with_addresses
from dart_gym.core.suggestions import suggest


@dataclass(frozen=True, slots=True)
class FirstKind:
    """A kind of first configuration.

    Attributes:
        summary: what it is for, in a few words.
        steps: commands that come next, in order.
        pages: of the documentation, that explain it.
        also: package and kind whose files are written, too.
    """

    summary: str
    steps: tuple[str, ...]
    pages: tuple[str, ...] = ()
    also: tuple[str, str] | None = None


def kinds_help(kinds: Mapping[str, FirstKind]) -> str:
    """Return the help of the argument KIND."""
    return "; ".join(f"{name}: {kind.summary}" for name, kind in kinds.items()) + "."


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return a JSON schema as it is written, with addresses of pages that its reader has."""
    return with_addresses(json.dumps(schema, indent=1, ensure_ascii=False)) + "\n"


def write_first(
    package: str, kinds: Mapping[str, FirstKind], kind: str, directory: Path, schemas: Mapping[str, str]
) -> list[str]:
    """Write the files of a kind and the schemas, and return lines that say so and what to do next.

    Args:
        package: whose `assets/first` has the files.
        kinds: all kinds, by name.
        kind: the one that is asked for.
        directory: where to write; it is made.
        schemas: by name of the file, the text.

    Raises:
        ConfigurationError: if there is no such kind, or a file is there already; nothing is written then.
    """
    if kind not in kinds:
        raise ConfigurationError(f"there is no kind {kind!r} of first files; {suggest(kind, kinds)}")
    texts = package_texts(package, kind)
    if also := kinds[kind].also:
        texts |= package_texts(*also)
    same = [name for name, text in schemas.items() if _holds(directory / name, text)]
    texts |= {name: text for name, text in schemas.items() if name not in same}
    _refuse_overwriting([directory / name for name in texts])
    _write(directory, texts)
    return [*(f"wrote {_shown(directory / name)}" for name in texts), *_next_steps(kinds[kind], directory)]


def _write(directory: Path, texts: Mapping[str, str]) -> None:
    """Write new files; if one cannot be written, none is left."""
    written: list[Path] = []
    try:
        for name, text in texts.items():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as file:
                written.append(target)
                file.write(text)
    except OSError as error:
        if error.filename is None and written:  # it was opened, and could not be filled
            error.filename = str(written[-1])
        for path in written:
            path.unlink(missing_ok=True)
        raise


def package_texts(package: str, kind: str) -> dict[str, str]:
    """By relative path, what the files of a kind hold."""
    source = Path(str(files(package).joinpath("assets", "first", kind)))
    found = sorted(path for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(source)): with_addresses(path.read_text(encoding="utf-8")) for path in found}


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def _refuse_overwriting(paths: Sequence[Path]) -> None:
    if there := [_shown(path) for path in paths if os.path.lexists(path)]:
        raise ConfigurationError(
            f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} there already, and nothing was written: choose "
            "another directory with --out, or move the old files away"
        )


def _next_steps(kind: FirstKind, directory: Path) -> list[str]:
    """Return what comes next, to be typed in the same directory as the command."""
    where = [] if directory.resolve() == Path.cwd() else [f"  cd {_shown(directory)}"]
    more = [f"see {', '.join(map(page, kind.pages))}"] if kind.pages else []
    return ["next:", *where, *(f"  {step}" for step in kind.steps), *more]


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.resolve().is_relative_to(Path.cwd()) else str(path)
