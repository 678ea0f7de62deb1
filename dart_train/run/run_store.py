"""Opening the data manager of a run with the settings of its configuration, for its processes and the launcher."""

from __future__ import annotations

from pathlib import Path

from dart_train.config.run_config import RunConfig
from dart_train.data.manager.data_manager import DataManager
from dart_train.data.store.sql_store import UNAVAILABLE_TIMEOUT_S
from dart_train.run.run_directory import RunDirectory


def open_data(
    config: RunConfig, run: RunDirectory, unavailable_timeout_s: float = UNAVAILABLE_TIMEOUT_S
) -> DataManager:
    """Open a run's data manager; its calls retry for `unavailable_timeout_s` while the database is away."""
    data = DataManager.open(
        url=config.data.database_url() or run.database_url,
        root=Path(run.data) if config.data.files is None else f"{config.data.files.rstrip('/')}/{config.name}",
        run_id=config.name,
        config=config.data.curation,
        image_format=config.data.image_format,
        unavailable_timeout_s=unavailable_timeout_s,
    )
    data.copies = (run.checkpoints, run.root / "copies")
    return data
