"""One browser for all MiniWoB++ tests, and a way to play an episode."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from dart_gym.core.actions import Action, Done
from dart_gym.core.outcomes import Evaluation, TerminalState
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.catalog.registry import get_task, make_scenario
from dart_gym.tasks.catalog.scenario import Prepared, Scenario
from dart_gym.tasks.catalog.task import Task


@dataclass
class Stage:
    """A desktop and a scenario on it."""

    desktop: Desktop
    scenario: Scenario
    loop: asyncio.AbstractEventLoop

    def run(self, coroutine):
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 60))

    def reset(self, task: Task | str, seed: int) -> tuple[Prepared, NDArray[np.uint8]]:
        found = get_task(task) if isinstance(task, str) else task
        prepared = self.run(self.scenario.prepare(self.desktop, found, seed))
        self.settle = prepared.settle
        return prepared, self.screenshot()

    def screenshot(self) -> NDArray[np.uint8]:
        return self.run(self.desktop.screenshot())

    def step(self, action: Action) -> bool:
        async def step():
            await self.desktop.perform(action)
            await self.desktop.settle(self.settle)
            return await self.scenario.after_action(self.desktop, action)

        return self.run(step())

    def oracle(self) -> Action:
        return self.run(self.scenario.oracle(self.desktop))

    def evaluate(self, terminal: TerminalState = TerminalState.DONE) -> Evaluation:
        return self.run(self.scenario.evaluate(self.desktop, terminal, []))

    def follow_oracle(self, limit: int) -> int:
        """Play to the end; returns the number of actions."""
        for number in range(limit):
            action = self.oracle()
            if isinstance(action, Done) or self.step(action):
                return number + 1
        return limit


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def browser(loop) -> Iterator[Stage]:
    desktop = make_desktop(get_task("miniwob/click-test").desktop)
    loop.run_until_complete(desktop.start())
    scenario = make_scenario("miniwob")
    yield Stage(desktop, scenario, loop)
    loop.run_until_complete(scenario.close())
    loop.run_until_complete(desktop.stop())


@pytest.fixture
def stage(request, loop) -> Iterator[Stage]:
    """A fresh desktop for the task that the test is parametrised with."""
    task = get_task(request.getfixturevalue("task_id"))
    desktop = make_desktop(task.desktop)
    loop.run_until_complete(desktop.start())
    yield Stage(desktop, make_scenario(task.suite), loop)
    loop.run_until_complete(desktop.stop())
