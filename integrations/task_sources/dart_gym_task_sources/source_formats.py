"""Formats of sources: what makes tasks of a source's files. Here is OSWorld's (and OSWorld-Verified's) JSON.

A plug-in (group `dart_gui.task_sources`) reads others; `cua_gym.py` is one to copy.

Invariants:
    - A format decides from names and contents only: it runs nothing of a source.
    - What is wrong with one task is an `Imported` without `raw` and with the reason; the others go on.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol

from dart_gym.core.errors import TaskError
from dart_gym.tasks.catalog.registry import task_from_dict
from dart_gym.utils.plugins import Registry, has
from dart_gym_task_sources.source_files import table_rows


@dataclass(frozen=True, slots=True)
class Imported:
    """A task of a source, or why it is none.

    Attributes:
        raw: OSWorld's JSON, its evaluator perhaps a program of the bundle (`foreign_reward`); None: refused.
        folder: path of the bundle, all files of which come along; "" where the JSON is all.
        fields: for `task_index.COLUMNS`.
        reason: why it is refused.
    """

    name: str
    raw: dict[str, Any] | None
    folder: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


class SourceFormat(Protocol):
    """Reads the files of a source, whose paths begin with a slash."""

    def recognises(self, paths: Collection[str]) -> bool:
        """Whether a source with these files is of this format."""

    def read(self, files: Mapping[str, bytes]) -> Iterator[Imported]:
        """The tasks. Raises `TaskError`: none of it can be read."""


class OSWorldFormat:
    """A JSON file for each task, its folder the application; `test_<split>.json` lists tasks. Or rows of a table."""

    def recognises(self, paths: Collection[str]) -> bool:
        """Any JSON, or a table; the classes of OSWorld 2.0, in order to say what is wrong with them."""
        return any(path.endswith((".json", ".parquet")) or _is_class(path) for path in paths)

    def read(self, files: Mapping[str, bytes]) -> Iterator[Imported]:
        """See `SourceFormat.read`."""
        if any(map(_is_class, files)):
            raise TaskError(
                "these are OSWorld 2.0's tasks, Python classes (task_*.py) that drive its own machines and are public "
                "behind a gate only: they cannot be imported; import OSWorld's or CUA-Gym's tasks"
            )
        splits: dict[str, str] = {}
        for path in sorted((path for path in files if _is_list(path)), key=lambda path: -len(files[path])):
            listed = json.loads(files[path])
            split = PurePosixPath(path).stem.removeprefix("test_")
            splits |= {name: "" if split == "all" else split for names in listed.values() for name in names}
        for path in files:
            if path.endswith(".parquet"):
                for row in table_rows(files[path]):
                    yield _imported(str(row.get("id")), {key: _value(value) for key, value in row.items()}, row)
            elif path.endswith(".json") and not _is_list(path):
                place = PurePosixPath(path)
                try:
                    raw = json.loads(files[path])
                except ValueError as error:
                    yield Imported(place.stem, None, reason=f"it is not JSON: {error}")
                    continue
                given = raw.get("id") if isinstance(raw, dict) else None
                name = given if isinstance(given, str) and given else place.stem
                yield _imported(name, raw, {"app": place.parent.name, "split": splits.get(name, "")})


def _imported(name: str, raw: Any, fields: Mapping[str, Any]) -> Imported:
    try:
        task_from_dict(raw)
    except TaskError as error:
        return Imported(name, None, reason=str(error))
    return Imported(name, raw, fields={key: str(value) for key, value in fields.items() if value})


def _value(value: Any) -> Any:
    """A cell of a table, in which objects are text."""
    return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def _is_list(path: str) -> bool:
    return re.fullmatch(r"/(\w+/)?test_\w+\.json", path) is not None


def _is_class(path: str) -> bool:
    return re.search(r"/task_\d+\.py$", path) is not None


TASK_SOURCES: Registry[SourceFormat] = Registry(
    "format of task sources",
    "dart_gui.task_sources",
    {
        "osworld": "dart_gym_task_sources.source_formats:OSWorldFormat",
        "cua-gym": "dart_gym_task_sources.cua_gym:CUAGymFormat",
    },
    (has(recognises=("paths",), read=("files",)),),
)
