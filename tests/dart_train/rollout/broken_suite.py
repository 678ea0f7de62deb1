"""Tasks that go wrong, on drawn desktops: imported by tests that serve them."""

from __future__ import annotations

import dataclasses

from dart_gym.core.actions import Action
from dart_gym.core.errors import TaskError
from dart_gym.core.outcomes import Evaluation, TerminalState
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.tasks.catalog.scenario import Prepared
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.suites.fake_suite import TASKS, FakeScenario

SUITE = "broken_suite:Broken"
CRASH, SETUP, BUG, JUDGE, HEALED = (f"{SUITE}/{name}" for name in ("crash", "setup", "bug", "judge", "healed"))
MENDED = {HEALED: False}
"""Whether tasks that can be mended are."""


class BrokenScenario(FakeScenario):
    """Crashes its desktop at the first action, cannot be set up, or has a defect in its code or its evaluation's."""

    async def prepare(self, desktop: Desktop, task: Task, seed: int) -> Prepared:
        if task.id == SETUP:
            raise TaskError("its set-up downloads a file that is gone")
        if task.id == BUG:
            raise KeyError("a file that is gone")
        self._crashes = task.id != JUDGE and not MENDED.get(task.id, False)
        self._judges = task.id != JUDGE
        return await super().prepare(desktop, task, seed)

    async def after_action(self, desktop: Desktop, action: Action) -> bool:
        if self._crashes and isinstance(desktop, FakeDesktop):
            desktop.crash()
        return await super().after_action(desktop, action)

    async def evaluate(self, desktop: Desktop, terminal: TerminalState, actions: list[Action]) -> Evaluation:
        if not self._judges:
            raise KeyError("a result that is gone")
        return await super().evaluate(desktop, terminal, actions)


class Broken:
    """The suite: a server imports it that has it among its `suites`."""

    make_scenario = BrokenScenario

    @staticmethod
    def load_tasks() -> tuple[Task, ...]:
        return tuple(dataclasses.replace(TASKS[1], id=name) for name in (CRASH, SETUP, BUG, JUDGE, HEALED))
