"""Imports a source once into the index of a suite; from then on its tasks are read from there, one by one.

Invariants:
    - A task that cannot be taken is a row of `problems`, with its name and one line of reason; the others are taken.
    - An import that fails leaves the index that was there.
"""

import contextlib
import hashlib
import json
import os
import re
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from dart_gym.core.errors import ConfigurationError, TaskError
from dart_gym.tasks.catalog.registry import SUITES, get_task, task_from_dict, task_ids
from dart_gym.tasks.catalog.task_index import COLUMNS, VERSION, TaskIndex, conditions
from dart_gym.utils.durable_files import make_directories, rename
from dart_gym_task_sources.source_files import walk
from dart_gym_task_sources.source_formats import TASK_SOURCES, Imported, SourceFormat

UNSTATED = "not stated"
SCHEMA = f"""
PRAGMA user_version = {VERSION};
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE tasks
    (name TEXT PRIMARY KEY, raw TEXT, screen TEXT, folder TEXT, {", ".join(f"{name} TEXT" for name in COLUMNS)});
CREATE TABLE files (path TEXT PRIMARY KEY, data BLOB, task TEXT);
CREATE TABLE problems (name TEXT, reason TEXT);
"""


def import_source(
    source: str,
    suite: str,
    *,
    format_name: str = "",
    chosen: str = "",
    licence: str = "",
    max_steps: int | None = None,
    held_out: float = 0.0,
) -> TaskIndex:
    """Import a source: what `walk` takes, or "suite:NAME" for tasks of another suite.

    Args:
        source: what is imported.
        suite: the name that it gets; an index of that name is replaced.
        format_name: of `TASK_SOURCES`; "" finds it out.
        chosen: `conditions` of the tasks that are taken.
        licence: of the tasks; "" reads it from the source's README.md.
        max_steps: of bundles that name none.
        held_out: share of the tasks without a split that go into "test", the others into "train"; 0: no split.

    Raises:
        ConfigurationError: the suite's name is taken or none, or no format is known for it.
        TaskError: the source cannot be read, or holds no task that can be taken.
    """
    if suite in SUITES.names() or not re.fullmatch(r"[a-zA-Z0-9][\w.-]{0,99}", suite):
        raise ConfigurationError(f"{suite!r} cannot be a suite's name, or is one already: give another by --name")
    conditions(chosen)
    index = TaskIndex(suite)
    make_directories(index.path.parent)
    partial = index.path.with_name(f".{suite}-{os.getpid()}.partial")
    try:
        with contextlib.closing(sqlite3.connect(partial)) as database:
            database.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {SCHEMA}")
            _Import(database, max_steps, held_out).run(source, format_name, chosen, licence)
            database.commit()
        rename(partial, index.path)
    finally:
        partial.unlink(missing_ok=True)
    return index


class _Stored(Mapping[str, bytes]):
    """The files of a source, in the index that is being made."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __getitem__(self, path: str) -> bytes:
        row = self._database.execute("SELECT data FROM files WHERE path = ?", (path,)).fetchone()
        if row is None:
            raise KeyError(path)
        return zlib.decompress(row[0])

    def __iter__(self) -> Iterator[str]:
        return iter([path for (path,) in self._database.execute("SELECT path FROM files ORDER BY path")])

    def __len__(self) -> int:
        return int(self._database.execute("SELECT count(*) FROM files").fetchone()[0])


class _Import:
    def __init__(self, database: sqlite3.Connection, max_steps: int | None, held_out: float) -> None:
        self._database, self._max_steps, self._held_out = database, max_steps, held_out
        self._bad: list[tuple[str, str]] = []  # files that were not taken, and why

    def run(self, source: str, format_name: str, chosen: str, licence: str) -> None:
        put, files = self._database.execute, _Stored(self._database)
        if source.startswith("suite:"):
            kind, found = "suite", _of_suite(source.removeprefix("suite:"))
        else:
            self._store(source)
            if not files and not self._bad:
                raise TaskError(f"{source} holds no files")
            kind = format_name or _recognised([*files, *(path for path, _ in self._bad)], source)
            reader = TASK_SOURCES.get(kind)
            found = (reader() if isinstance(reader, type) else reader).read(files)
        for task in found:
            if reason := self._take(task, kind):
                put("INSERT INTO problems VALUES (?, ?)", (task.name, reason))
        if not put("SELECT count(*) FROM tasks").fetchone()[0]:
            first = put("SELECT name || ': ' || reason FROM problems").fetchone() or ["it holds none"]
            raise TaskError(f"no task of {source} could be imported; the first: {first[0]}")
        for path, problem in self._bad:  # those of bundles have their row
            name = path.strip("/").split("/")[0]
            put("INSERT INTO problems SELECT ?, ? WHERE ? NOT IN (SELECT name FROM problems)", (name, problem, name))
        where, values = conditions(chosen)
        put(f"DELETE FROM tasks WHERE NOT ({where})", values)
        licence = licence or _licence(files) or UNSTATED
        put("DELETE FROM files WHERE task IS NULL OR task NOT IN (SELECT name FROM tasks)")
        facts = {
            "source": source,
            "format": kind,
            "licence": licence,
            "imported": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        }
        self._database.executemany("INSERT INTO meta VALUES (?, ?)", facts.items())
        put("CREATE INDEX files_of_tasks ON files (task)")

    def _store(self, source: str) -> None:
        for path, data, problem in walk(source):
            if problem:
                self._bad.append((path, problem))
            else:
                self._database.execute(
                    "INSERT OR REPLACE INTO files VALUES (?, ?, NULL)", (path, zlib.compress(data, 1))
                )

    def _take(self, task: Imported, kind: str) -> str:
        """Write a task down; returns why not, "" where it was."""
        under = f"{task.folder}/"
        bad = next((why for path, why in self._bad if task.folder and path.startswith(under)), "")
        if task.raw is None or bad:
            return bad or task.reason
        raw = dict(task.raw)
        try:
            if task.folder:
                steps = {"max_steps": self._max_steps} if self._max_steps is not None else {}
                raw["dart"] = {**steps, **(raw.get("dart") or {}), "bundle": self._claim(task.name, under)}
            spec = (get_task(raw["task"]) if kind == "suite" else task_from_dict(raw)).desktop
        except TaskError as error:
            return str(error)
        fields = {name: "" for name in COLUMNS} | {k: v for k, v in task.fields.items() if k in COLUMNS}
        fields |= {"kind": kind, "split": fields["split"] or self._split(task.name)}
        row = (
            task.name,
            json.dumps(raw),
            f"{spec.width}x{spec.height}",
            task.folder,
            *(fields[name] for name in COLUMNS),
        )
        try:
            self._database.execute(f"INSERT INTO tasks VALUES ({', '.join('?' * len(row))})", row)
        except sqlite3.IntegrityError:
            return "another task of the source has this name"
        return ""

    def _claim(self, name: str, under: str) -> str:
        """Make the files of a bundle the task's; returns a hash of them all."""
        content = hashlib.sha256()
        rows = "SELECT path, data FROM files WHERE path >= ? AND path < ?"
        between = (under, f"{under[:-1]}0")  # "0" follows "/"
        for path, data in self._database.execute(rows, between).fetchall():
            content.update(f"{path.removeprefix(under)}\0{len(data)}\0".encode() + data)
        self._database.execute("UPDATE files SET task = ? WHERE path >= ? AND path < ?", (name, *between))
        return content.hexdigest()[:16]

    def _split(self, name: str) -> str:
        if not self._held_out:
            return ""
        drawn = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") / 2**64
        return "test" if drawn < self._held_out else "train"


def _recognised(paths: list[str], source: str) -> str:
    """The format of a source: a plug-in's where one knows it, which knows more than what is built in."""
    for name in reversed(TASK_SOURCES.names()):
        found = TASK_SOURCES.get(name)
        reader: SourceFormat = found() if isinstance(found, type) else found
        if reader.recognises(paths):
            return name
    known = ", ".join(TASK_SOURCES.names())
    raise ConfigurationError(f"{source} is of no known format ({known}); give --format, or install its plug-in")


def _of_suite(name: str) -> Iterator[Imported]:
    for task_id in task_ids(name):
        yield Imported(task_id.partition("/")[2], {"task": task_id}, fields={"app": get_task(task_id).suite})


def _licence(files: Mapping[str, bytes]) -> str:
    found = re.search(rb"(?m)^license:[ \t]*(\S.*)$", files.get("/README.md", b""))
    return found[1].decode(errors="replace").strip() if found else ""
