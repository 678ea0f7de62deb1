"""All pairs, as a suite: `tests.dart_gym.solved.pair_suite:SolvedPairs`."""

from __future__ import annotations

import importlib
from pathlib import Path

from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.osworld.osworld_scenario import OSWorldScenario
from tests.dart_gym.solved.solved_pairs import SolvedPair

BESIDE = {path.stem for path in Path(__file__).parent.glob("*_pairs.py")}
NAMES = sorted(BESIDE - {"solved_pairs", "test_solved_pairs"})


def all_pairs() -> list[SolvedPair]:
    """The pairs of all modules beside this one, `PAIRS` of each."""
    return [pair for name in NAMES for pair in importlib.import_module(f"{__package__}.{name}").PAIRS]


class SolvedPairs:
    """The suite."""

    def load_tasks(self) -> list[Task]:
        return [pair.task for pair in all_pairs()]

    make_scenario = OSWorldScenario
