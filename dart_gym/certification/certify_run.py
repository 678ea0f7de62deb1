"""Plays the units of a suite side by side and keeps each one's record, so that a run that was cut off goes on.

Invariants:
    - A unit's record is on the disk before the next unit of its desktop begins; what was cut off is played again.
    - A record counts for the task as it is now only: of a task that has changed all units are played again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dart_gym.certification.attempts import Attempt, Unit, play_unit
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_gym.tasks.catalog.task import Task

RECORDS, PICTURES = "attempts.jsonl", "screens"


def seeds(repeat: int) -> list[int]:
    """As many seeds, by turns of those held out and those to train on, which may draw other instances. Pure."""
    return [number // 2 + number % 2 * FIRST_TRAINING_SEED for number in range(repeat)]


def read_records(path: Path, tasks: Iterable[Task]) -> dict[tuple[str, int], Unit]:
    """The units of these tasks that are on record, by task and seed; a line that was cut off is ignored."""
    hashes, found = {task.id: task.hash for task in tasks}, {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            record = json.loads(line)
            unit = Unit(**{**record, "attempts": [Attempt(**attempt) for attempt in record["attempts"]]})
        except (ValueError, TypeError, KeyError):
            continue
        if hashes.get(unit.task) == unit.hash:
            found[unit.task, unit.seed] = unit
    return found


async def play_all(
    tasks: Sequence[Task], repeat: int, parallel: int, deadline_s: float, path: Path, say: Callable[[Unit, str], None]
) -> list[Unit]:
    """Play the units that are not on record yet, `parallel` at a time, and return all. Raises as `play_unit` does.

    `say` is told each unit that is done, and how many of how many that makes.
    """
    units = read_records(path, tasks)
    asked = [(task, seed) for seed in seeds(repeat) for task in tasks]
    pending = [(task, seed) for task, seed in asked if (task.id, seed) not in units]
    done, queue = itertools.count(len(asked) - len(pending) + 1), iter(pending)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        if file.tell() and not path.read_bytes().endswith(b"\n"):
            file.write("\n")

        async def play() -> None:
            for task, seed in queue:
                unit = units[task.id, seed] = await play_unit(task, seed, deadline_s, path.parent / PICTURES)
                file.write(json.dumps(dataclasses.asdict(unit)) + "\n")
                file.flush()
                os.fsync(file.fileno())
                say(unit, f"{next(done)}/{len(asked)}")

        await asyncio.gather(*(play() for _ in range(parallel)))
    return list(units.values())
