"""The database and the storage of a run: they answer, and take what a run records."""

import os
from pathlib import Path

import sqlalchemy as sa

from dart_train.config.run_config import ConfigError, RunConfig
from dart_train.core.train_errors import ReadOnlyError
from dart_train.preflight.problems import found_by

AWAY_S = 0.0
"""Seconds for which a server that does not answer is asked again."""


def store_problems(config: RunConfig) -> list[str]:
    """Return what is wrong with `data.url`, `data.url_env` and `data.files`; a run directory makes its own."""
    found: list[str] = []
    try:
        url = config.data.database_url()
    except ConfigError:  # the settings' own check says it
        url = None
    if url is not None:
        found += [f"data.url: {text}" for text in found_by(lambda: check_database(url))]
    files = config.data.files
    if files is not None:
        found += [f"data.files: {text}" for text in found_by(lambda: check_files(files))]
    return found


def check_database(url: str) -> None:
    """See that a database answers and has our tables or none. Nothing is made in it.

    Raises:
        DataError: it is not there, lets nobody in, or has other tables.
        MissingDependencyError: its driver is not installed.
    """
    from dart_train.data.store.sql_store import Store

    parsed: sa.URL | None
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        parsed = None  # `Store` says it
    if parsed is not None and parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
        if not Path(str(parsed.database)).exists():
            _check_folder(Path(str(parsed.database)).absolute().parent)
            return
    Store(url, unavailable_timeout_s=AWAY_S, make=False).close()


def check_files(where: str) -> None:
    """See that a storage takes files; a small one is written into an object store and removed. Raises `DataError`."""
    from dart_train.data.files.object_storage import open_storage

    storage = open_storage(where)
    if storage.directory is not None:
        _check_folder(storage.directory)
    else:
        storage.check_writable()


def _check_folder(folder: Path) -> None:
    """See that a folder can be written, or made. Raises `ReadOnlyError`."""
    place = folder
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ReadOnlyError(f"{folder} cannot be written: check the owner and the rights of {place}, or name another")
