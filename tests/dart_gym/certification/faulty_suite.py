"""A suite of drawn buttons in which each task but the first has a fault of its own, by the task's name."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools

from dart_gym.core.actions import Action, Click
from dart_gym.core.errors import NoOracleError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.tasks.catalog.scenario import Prepared
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.suites.fake_suite import TASKS, FakeScenario

FAULTS = ("right", "free", "unsolved", "misses", "hangs", "raises", "restless", "flaky", "unscored")
SUITE = "tests.dart_gym.certification.faulty_suite:Faulty"


class FaultyScenario(FakeScenario):
    """`FakeScenario` with a fault."""

    episodes = itertools.count()

    async def prepare(self, desktop: Desktop, task: Task, seed: int) -> Prepared:
        self.fault, self.seed = task.raw["id"], seed
        if self.fault == "hangs":
            await asyncio.Event().wait()
        if self.fault == "raises":
            raise ValueError("no such file: seed.db")
        other = next(self.episodes) if self.fault == "restless" else 0
        plain = dataclasses.replace(task, id="fake/click-button", raw=TASKS[0].raw)
        return await super().prepare(desktop, plain, seed + other)

    async def evaluate(self, desktop: Desktop, terminal: TerminalState, actions: list[Action]) -> Evaluation:
        found = await super().evaluate(desktop, terminal, actions)
        if self.fault == "unscored":
            return Evaluation(EvaluationStatus.EVALUATION_ERROR, None, "faulty", "metric fell over")
        return dataclasses.replace(found, score=1.0) if self.fault == "free" else found

    async def oracle(self, desktop: Desktop) -> Action:
        if self.fault == "unsolved":
            raise NoOracleError("nobody knows")
        missing = self.fault == "misses" or (self.fault == "flaky" and self.seed == 1)
        return Click(0, 0) if missing else await super().oracle(desktop)


class Faulty:
    """The suite."""

    def load_tasks(self) -> list[Task]:
        return [Task(f"faulty/{name}", "", TASKS[0].desktop, 1, {"id": name}) for name in FAULTS]

    make_scenario = FaultyScenario
