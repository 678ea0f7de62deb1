"""Runs that begin alike: one plays the demonstrations, warms up and is tested, and the others go on from copies of it.

Invariants:
    - Two runs share a start only where all that its phases read is equal, the seed and the name too (rows and files
      carry it), and where everything lies in the run's own directory.
    - A copy is whole or not there: it gets its name last.
"""

from __future__ import annotations

import hashlib
import shutil

import sqlalchemy as sa

from dart_train.config.run_config import RunConfig, dump_config
from dart_train.data.store.schema import checkpoint
from dart_train.run.run_directory import RunDirectory, write_text

LATER = {"description", "trainer", "controls", "data", "rollout"}
"""Sections that only the reinforcement learning and what follows it read, but for a few keys of `rollout`."""
READ = {"tasks", "max_steps", "sampling", "engine", "pacing"}


def start_key(config: RunConfig) -> str:
    """What two runs that begin alike have in common, as a short name; "" where a run can share nothing. Pure."""
    data = config.data
    if data.url or data.url_env or data.files or config.cluster.url:
        return ""
    texts = config.model_dump_json(exclude=LATER), config.rollout.model_dump_json(include=READ), data.image_format
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def go_on_from(start: RunDirectory, config: RunConfig, run: RunDirectory) -> None:
    """Lay a copy of a start as the directory of another run, which goes on with its reinforcement learning."""
    fresh = run.root.with_name(f".{run.root.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(start.root, fresh, ignore=shutil.ignore_patterns("*.sock", "*.lock"))
    copy = RunDirectory(fresh)
    write_text(copy.config, dump_config(config))
    engine = sa.create_engine(copy.database_url)
    with engine.begin() as connection:  # versions are known by their place
        old, new = (str(place.root.absolute()) for place in (start, run))
        connection.execute(checkpoint.update().values(path=sa.func.replace(checkpoint.c.path, f"{old}/", f"{new}/")))
    engine.dispose()
    fresh.rename(run.root)
