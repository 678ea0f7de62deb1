"""Trajectories and managers for the data manager's tests, and what child processes run."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from pathlib import Path

import numpy as np

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_gym.core.outcomes import TerminalState
from dart_train.data import CurationConfig, DataManager, image_hash
from dart_train.data.store.schema import metadata
from dart_train.data.store.sql_store import Store

CONTEXT = multiprocessing.get_context("forkserver")
"""Of the processes that tests start; the fixture `forkserver` makes that fast."""
RUN = "run"
URL_FILE = "database-url"
SMALL = CurationConfig(group_size=2, max_staleness=2, batch_groups=2, batches_ahead=2.0, success_window=4)


class Clock:
    """A clock that the test turns."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def picture(seed: int = 0, height: int = 24, width: int = 20) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def make_step(version: int = 0, images: tuple[str, ...] = (), **fields) -> Step:
    values = {
        "prompt_ids": (1, 2, 3),
        "image_hashes": images,
        "response_ids": (7, 8),
        "logprobs": (-0.25, -1.5),
        "version": (version, version),
        "text": "Action: click",
        "actions": ({"kind": "click", "x": 3, "y": 4},),
        "timings": {"perform": 0.25},
        "engine": "r0",
    }
    return Step(**{**values, **fields})


def make_trajectory(name: str, group: str = "g", reward: float | None = 1.0, version: int = 0, **fields) -> Trajectory:
    values = {
        "run_id": RUN,
        "task_id": "fake/button",
        "task_hash": "0" * 16,
        "instruction": "Click the button",
        "seed": 7,
        "terminal": TerminalState.DONE,
        "steps": (make_step(version),),
        "timings": {"reset": 0.5, "step": 0.25, "evaluate": 0.25, "generate": 3.0},
    }
    return Trajectory(trajectory_id=name, group_key=group, score=reward, **{**values, **fields})


def url_of(folder: Path) -> str:
    """The database of a test's directory: the one that the fixture `database` named, or a file in it."""
    named = folder / URL_FILE
    return named.read_text() if named.exists() else f"sqlite:///{folder}/data/dart.sqlite"


def empty(url: str) -> None:
    """Remove all rows, those too that a process which is at its end commits between two statements."""
    store = Store(url)
    tables = list(metadata.tables.values())
    while store.write(lambda connection: sum(connection.execute(table.delete()).rowcount for table in tables)):
        pass
    store.close()


def fresh(folder: Path) -> Path:
    """Return a new directory with the database of a test's, emptied: for a test that runs many examples."""
    one = Path(tempfile.mkdtemp(dir=folder))
    if (folder / URL_FILE).exists():
        shutil.copy(folder / URL_FILE, one)
        empty(url_of(one))
    return one


def open_manager(folder: Path, clock=None, config: CurationConfig = SMALL) -> DataManager:
    return DataManager.open(url_of(folder), folder / "data", RUN, config=config, clock=clock)


def record_group(data: DataManager, group: str, rewards=(0.0, 1.0), version: int = 0, **fields) -> list[str]:
    names = [f"{group}-{index}" for index in range(len(rewards))]
    for name, reward in zip(names, rewards, strict=True):
        data.record(make_trajectory(name, group, reward, version, **fields))
    return names


def publish(data: DataManager, version: int) -> None:
    path = data.files.root.parent / "checkpoints" / f"v{version:06d}"
    path.mkdir(parents=True, exist_ok=True)
    data.publish(version, path, "training")


def record_with_image(data: DataManager, name: str, group: str, image: np.ndarray, reward: float = 1.0) -> str:
    image_id = image_hash(image)
    data.record(make_trajectory(name, group, reward, steps=(make_step(0, (image_id,)),)), {image_id: image})
    return image_id
