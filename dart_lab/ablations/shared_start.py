"""Runs that begin alike: one run plays demonstrations, warms up and is tested; the others start from copies of it.

Invariants:
    - A start is shared where all that its phases read is equal, the name (which rows and files carry) and the seed too,
      and where everything lies in the run's own directory. A copy is whole or not there.
"""

from __future__ import annotations

import hashlib
import shutil
from typing import Any

import sqlalchemy as sa

from dart_train.config.run_config import RunConfig, dump_config
from dart_train.data.store.schema import checkpoint
from dart_train.run.run_directory import RunDirectory, write_text

# What only the reinforcement learning and what follows read, and the keys of `rollout` that others read too.
LATER: dict[str, Any] = {
    **dict.fromkeys(("description", "trainer", "controls", "data", "rollout", "teacher"), True),
    "demonstrations": {"shown_pages"},
}
READ = {"tasks", "max_steps", "sampling", "engine", "pacing"}


def start_key(config: RunConfig) -> str:
    """A short name for what runs that begin alike have in common; "" where a run can share nothing. Pure."""
    data = config.data
    if data.url or data.url_env or data.files or config.cluster.url:
        return ""
    parts = config.model_dump_json(exclude=LATER), config.rollout.model_dump_json(include=READ)
    return hashlib.sha256("\n".join([*parts, data.image_format, config.trainer.kind]).encode()).hexdigest()[:12]


def go_on_from(start: RunDirectory, config: RunConfig, run: RunDirectory) -> None:
    """Copy a start to the directory of another run, which continues with its reinforcement learning."""
    fresh = run.root.with_name(f".{run.root.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(start.root, fresh, ignore=shutil.ignore_patterns("*.sock", "*.lock"))
    copy = RunDirectory(fresh)
    write_text(copy.config, dump_config(config))
    engine = sa.create_engine(copy.database_url)
    old = start.root.absolute()
    new = run.root.absolute()
    with engine.begin() as connection:  # versions are known by their place
        connection.execute(checkpoint.update().values(path=sa.func.replace(checkpoint.c.path, f"{old}/", f"{new}/")))
    engine.dispose()
    fresh.rename(run.root)
