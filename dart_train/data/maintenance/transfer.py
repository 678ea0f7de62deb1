"""A run in one file, to take it to another machine or database: `export_run`, `import_run`.

The file is a tar archive: `manifest.json`, `rows/<table>.jsonl` with the rows of the run, `trajectories/<id>.msgpack`,
and `images/<hash>.png`. Weights are not in it: the rows of checkpoints name their places.

Invariants:
    - An archive has its final name only once it is whole; a run is imported whole or not at all.
    - An archive may come from an untrusted source: it is read in pieces of bounded size (`foreign_archive`).
    - Ids that a database assigned are assigned again; a run may be imported under another name.
"""

import dataclasses
import datetime
import io
import json
import os
import tarfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import PIL.Image
import sqlalchemy as sa
from numpy.typing import NDArray

from dart_agent.episodes.screenshots import decode_image
from dart_agent.episodes.trajectory_format import pack_trajectory, unpack_trajectory
from dart_gym.utils.durable_files import rename
from dart_gym.utils.png import encode_png
from dart_train.core.package_version import VERSION
from dart_train.core.train_errors import CorruptDataError, DataError
from dart_train.data.groups import trajectory_rows
from dart_train.data.maintenance.foreign_archive import ForeignArchive, open_archive
from dart_train.data.manager.data_manager import DataManager
from dart_train.data.manager.run_data import RunData
from dart_train.data.store.schema import REVISION, metadata

FORMAT = 1
_BATCH = 500
_SMALL_BYTES, _LINE_BYTES = 1 << 20, 4 << 20
_IMAGE_BYTES, _MOST_PIXELS = 64 << 20, 40_000_000
_TRAJECTORY_BYTES = 32 << 20
# Tables whose rows name their run, in an order in which what is referred to comes first ...
ROWS_OF_RUN = (
    "rollout_run", "checkpoint", "rollout_group", "lease", "rollout_meta", "checkpoint_meta", "task_state",
    "serving", "experience_pool", "curation_decision", "run_state",
)  # fmt: skip
# ... and those that belong to a row of another table.
ROWS_OF_PARENT = {
    "rollout_step": ("rollout_id", "rollout_meta", "rollout_id"),
    "lease_item": ("lease_id", "lease", "lease_id"),
    "group_injection": ("group_id", "rollout_group", "id"),
}
_OWN_ID = {"rollout_run": "rollout", "rollout_group": "group", "checkpoint": "checkpoint"}
_ROW_FILES = frozenset(f"rows/{name}.jsonl" for name in (*ROWS_OF_RUN, *ROWS_OF_PARENT))
_REFERENCES = {
    "rollout_id": "rollout", "replaced_id": "rollout", "last_rollout_id": "rollout", "group_id": "group",
    "checkpoint_id": "checkpoint", "lease_id": "lease",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Transferred:
    """Contents of an archive: rows by table, and files."""

    rows: dict[str, int]
    trajectories: int
    images: int


def export_run(data: RunData, path: str | Path) -> Transferred:
    """Write a run, which may continue meanwhile, into an archive: rows of one moment. Raises `CorruptDataError`."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    with tarfile.open(partial, "w") as archive:
        rows = data.store.read(lambda connection: _write_rows(connection, data.run_id, archive))
        images: set[str] = set()
        names = data.read(trajectory_rows.list_stored)
        for name in names:
            trajectory = data.files.read_trajectory(name)
            _add(archive, f"trajectories/{name}.msgpack", pack_trajectory(trajectory))
            for image_id in trajectory.shown_images - images:
                _add(archive, f"images/{image_id}.png", encode_png(data.files.read_image(image_id)))
                images.add(image_id)
        counts = {"rows": rows, "trajectories": len(names), "images": len(images)}
        manifest = {"format": FORMAT, "revision": REVISION, "version": VERSION, "run_id": data.run_id, **counts}
        _add(archive, "manifest.json", json.dumps(manifest, indent=2).encode())
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    rename(partial, path)
    return Transferred(rows, len(names), len(images))


def import_run(data: DataManager, path: str | Path) -> Transferred:
    """Read an archive into a run without rows.

    Raises:
        DataError: if the archive is incomplete or of another version, or the run has rows.
    """
    with open_archive(path, lambda name: name == "manifest.json" or name in _ROW_FILES) as archive:
        manifest = _manifest(archive, path)
        tables = [metadata.tables[name] for name in ROWS_OF_RUN]
        found = [sa.select(1).where(table.c.run_id == data.run_id).limit(1) for table in tables]
        if data.store.read(lambda connection: any(connection.execute(query).first() for query in found)):
            raise DataError(f"run {data.run_id!r} has rows already: import into a run of another name")
        digests = _read_files(archive, data)
        if len(digests) != manifest["trajectories"]:
            raise CorruptDataError(path, f"{len(digests)} of {manifest['trajectories']} trajectories are in it")
        try:
            data.store.write(lambda connection: _read_rows(connection, archive, data.run_id, digests))
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptDataError(path, f"its rows are not of this version: {error!r:.300}") from error
    return Transferred(manifest["rows"], manifest["trajectories"], manifest["images"])


def _write_rows(connection: sa.Connection, run_id: str, archive: tarfile.TarFile) -> dict[str, int]:
    counts = {}
    for name in (*ROWS_OF_RUN, *ROWS_OF_PARENT):
        lines = [json.dumps(row, default=str) for row in _rows(connection, name, run_id)]
        _add(archive, f"rows/{name}.jsonl", "\n".join(lines).encode())
        counts[name] = len(lines)
    return counts


def _rows(connection: sa.Connection, name: str, run_id: str) -> Iterator[dict[str, Any]]:
    table = metadata.tables[name]
    if name in ROWS_OF_PARENT:
        column, parent_name, parent_column = ROWS_OF_PARENT[name]
        parent = metadata.tables[parent_name]
        mine = sa.select(parent.c[parent_column]).where(parent.c.run_id == run_id)
        query = sa.select(table).where(table.c[column].in_(mine))
    else:
        query = sa.select(table).where(table.c.run_id == run_id)
    for row in connection.execution_options(yield_per=_BATCH).execute(query.order_by(*table.primary_key)).mappings():
        yield dict(row)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _manifest(archive: ForeignArchive, path: str | Path) -> dict[str, Any]:
    try:
        manifest = json.loads(archive.read("manifest.json", _SMALL_BYTES))
        wanted = (manifest["format"], manifest["revision"])
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise CorruptDataError(path, f"no archive of `dart-train data export`: {error}") from error
    if wanted != (FORMAT, REVISION):
        raise DataError(
            f"{path} was written by version {manifest.get('version', '0.1.0')} of this package (format "
            f"{manifest['format']}, schema {manifest['revision']}), and this is version {VERSION} (format {FORMAT}, "
            f"schema {REVISION}): import it with that version, or export the run with this one"
        )
    return dict(manifest)


def _most_bytes(name: str) -> int:
    """Return the largest size allowed for a member that is a file of the run; 0 for other members. Pure."""
    return {"images": _IMAGE_BYTES, "trajectories": _TRAJECTORY_BYTES}.get(name.partition("/")[0], 0)


def _read_files(archive: ForeignArchive, data: DataManager) -> dict[str, str]:
    """Store all files, and return the digest of each trajectory."""
    digests = {}
    for name, content in archive.files(_most_bytes):
        kind, _, file = name.partition("/")
        try:
            if kind == "images":
                data.files.write_images({file.rpartition(".")[0]: _image(content)})
            else:
                trajectory = unpack_trajectory(content)
                own = dataclasses.replace(trajectory, run_id=data.run_id)
                data.files.write_trajectory(own, replace=True)
                digests[own.trajectory_id] = trajectory_rows.digest(pack_trajectory(own))
        except (ValueError, TypeError, KeyError, AttributeError, SyntaxError, msgpack.UnpackException) as error:
            raise CorruptDataError(name, error) from error
    return digests


def _image(content: bytes) -> NDArray[np.uint8]:
    """Return an image whose size is known before it is decoded.

    Raises:
        ValueError: if the size is too large.
        SyntaxError: if the data is not an image.
    """
    try:
        with PIL.Image.open(io.BytesIO(content), formats=("PNG", "WEBP")) as picture:
            width, height = picture.size
        if width * height > _MOST_PIXELS:
            raise ValueError(f"it has {width} x {height} pixels")
        return decode_image(content)
    except OSError as error:  # Pillow's name for what is no image: no file is read here
        raise ValueError(str(error)) from error


def _read_rows(connection: sa.Connection, archive: ForeignArchive, run_id: str, digests: dict[str, str]) -> None:
    numbers: dict[str, dict[Any, Any]] = {"rollout": {}, "group": {}, "checkpoint": {}, "lease": {}}
    for name in (*ROWS_OF_RUN, *ROWS_OF_PARENT):
        table = metadata.tables[name]
        renew = _renewal(table, run_id, numbers, digests)
        for lines in _batches(archive.lines(f"rows/{name}.jsonl", _LINE_BYTES)):
            rows = [json.loads(line) for line in lines]
            if name in _OWN_ID:  # one at a time: each gets its number from the database
                for row in rows:
                    key = connection.execute(table.insert(), renew(row)).inserted_primary_key
                    assert key is not None  # SQLAlchemy's type: a single-row insert always has one
                    numbers[_OWN_ID[name]][row["id"]] = key[0]
            else:
                connection.execute(table.insert(), [renew(row) for row in rows])


def _batches(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Lines in lists of bounded length and size."""
    batch, size = list[bytes](), 0
    for line in lines:
        if not line.strip():
            continue
        batch.append(line)
        size += len(line)
        if len(batch) == _BATCH or size >= _LINE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _renewal(
    table: sa.Table, run_id: str, numbers: dict[str, dict[Any, Any]], digests: dict[str, str]
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that turns a row of an archive into one of this run and this database."""
    times = [column.name for column in table.columns if isinstance(column.type, sa.TIMESTAMP)]
    own_number = table.name in _OWN_ID or table.name in ("serving", "curation_decision")

    def renew(row: dict[str, Any]) -> dict[str, Any]:
        new = {name: value for name, value in row.items() if name != "id" or not own_number}
        if "run_id" in new:
            new["run_id"] = run_id
        for column, kind in _REFERENCES.items():
            old = new.get(column)
            if old is None:
                continue
            if kind == "lease" and old not in numbers[kind]:
                numbers[kind][old] = uuid.uuid4().hex
            new[column] = numbers[kind].get(old, 0)
        if "digest" in new:
            new["digest"] = digests.get(new["trajectory_id"], "")
        for name in times:
            if new[name] is not None:
                new[name] = datetime.datetime.fromisoformat(new[name])
        return new

    return renew
