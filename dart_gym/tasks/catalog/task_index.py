"""Imported suites: one SQLite file each, `DIRECTORY/<suite>.sqlite`; `integrations/task_sources` makes them.

Invariants:
    - Nothing is written here. Listing, counting and drawing read columns of the table of tasks, and no task.
    - A file that cannot be read, or of another version, is one error that names the suite and the next step.
"""

import contextlib
import os
import re
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_gym.core.errors import ConfigurationError

VARIABLE, VERSION = "DART_GYM_SUITES", 1
COLUMNS = ("split", "app", "platform", "difficulty", "kind", "needs")
"""What tasks can be chosen by: "app=vlc,split!=test"; `needs` is why a task cannot run here, "" where it can."""


def imported_suites() -> list[str]:
    """Names of the imported suites, sorted; no file is opened."""
    return sorted(path.stem for path in index_directory().glob("*.sqlite"))


def index_directory() -> Path:
    """Where they are: `DART_GYM_SUITES`, or a directory of this user."""
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(os.environ.get(VARIABLE) or Path(data, "dart-gym", "suites")).expanduser().absolute()


def conditions(text: str) -> tuple[str, list[str]]:
    """Return the SQL and the values of "column=value,column!=value". Pure.

    Raises:
        ConfigurationError: if there is no such column.
    """
    words, values = ["1"], []
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = re.fullmatch(r"(\w+)\s*(!?=)\s*(.*)", part)
        if found is None or found[1] not in COLUMNS:
            raise ConfigurationError(f"{part!r} chooses no tasks: give COLUMN=VALUE or !=, of {', '.join(COLUMNS)}")
        words.append(f"{found[1]} {found[2]} ?")
        values.append(found[3])
    return " AND ".join(words), values


class TaskIndex:
    """One imported suite. All methods raise `ConfigurationError` where its file cannot be used."""

    def __init__(self, suite: str) -> None:
        self.suite, self.path = suite, index_directory() / f"{suite}.sqlite"

    def rows(self, query: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Return what a query finds in the tables of `integrations/task_sources`: tasks, files, problems, meta."""
        trouble = f"cannot be read: {self.path}: "
        try:
            with contextlib.closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)) as database:
                version = database.execute("PRAGMA user_version").fetchone()[0]
                if version == VERSION:
                    return database.execute(query, values).fetchall()
                trouble = f"has version {version}, and this program reads {VERSION}"
        except sqlite3.Error as error:
            trouble += str(error)
        again = f"dart-gym tasks import SOURCE --name {self.suite}"
        raise ConfigurationError(f"the index of the suite {self.suite} {trouble}; next step: {again}")

    def ids(self, chosen: str = "") -> list[str]:
        """Ids of the tasks that `conditions` choose, sorted."""
        where, values = conditions(chosen)
        return [
            f"{self.suite}/{name}" for (name,) in self.rows(f"SELECT name FROM tasks WHERE {where} ORDER BY 1", values)
        ]

    def samples(self) -> list[str]:
        """Ids of tasks, one for each size of the screen."""
        return [f"{self.suite}/{name}" for name, _ in self.rows("SELECT min(name), screen FROM tasks GROUP BY screen")]

    def files(self, task: str) -> Iterator[tuple[str, bytes]]:
        """Path within its bundle, and content, of each file of a task."""
        query = "SELECT substr(path, length(folder) + 2), data FROM files JOIN tasks ON name = task WHERE task = ?"
        for path, data in self.rows(query, (task,)):
            yield path, zlib.decompress(data)
