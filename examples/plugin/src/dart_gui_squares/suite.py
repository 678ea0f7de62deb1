"""The suite "squares": three squares on a drawn desktop, one of which is to be clicked.

A suite is anything with `load_tasks` and `make_scenario`: this module, or a class that is called without arguments. Its
tasks are `squares/largest` and `squares/smallest` wherever a task is named. The cluster that plays them imports this
file in a process of its own, so it must be installed where the cluster runs.
"""

from __future__ import annotations

import random
from typing import cast

from dart_gym import Click
from dart_gym.core.actions import Action
from dart_gym.core.errors import TaskError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec, SettlePolicy
from dart_gym.desktops.fake_desktop import Button, FakeDesktop
from dart_gym.tasks.catalog.scenario import Prepared
from dart_gym.tasks.catalog.task import Task

SCREEN = DesktopSpec(kind="fake", width=112, height=112, sandbox="none", reusable=True)
SIDES = {"small": 16, "middle": 24, "large": 32}  # pixels
COLORS = ((240, 110, 110), (120, 210, 120), (120, 160, 250))
CORNERS = ((8, 8), (64, 8), (8, 64), (64, 64))  # where a square may begin, in pixels
TARGETS = {"largest": "large", "smallest": "small"}


def load_tasks() -> list[Task]:
    """All tasks; `raw` holds whatever the scenario needs to know, and makes the hash that says what was scored."""
    return [
        Task(f"squares/{name}", f"Click the {name} square.", SCREEN, max_steps=1, raw={"id": name, "target": target})
        for name, target in TARGETS.items()
    ]


def make_scenario() -> SquaresScenario:
    """What plays the tasks on one desktop, episode after episode."""
    return SquaresScenario()


class SquaresScenario:
    """Draws the squares where the seed says, and looks which one was clicked."""

    def __init__(self) -> None:
        self._buttons: dict[str, Button] = {}
        self._target = ""

    async def prepare(self, desktop: Desktop, task: Task, seed: int) -> Prepared:
        """Bring the desktop into the state that (task, seed) define, the same every time."""
        draw = random.Random(f"{task.id}/{seed}")
        corners, colors = draw.sample(CORNERS, len(SIDES)), draw.sample(COLORS, len(SIDES))
        self._buttons = {
            name: Button("", x, y, side, side, color)
            for (name, side), (x, y), color in zip(SIDES.items(), corners, colors, strict=True)
        }
        self._target = task.raw["target"]
        self._screen(desktop).show(tuple(self._buttons.values()))
        return Prepared(task.instruction, SettlePolicy(quiet_ms=0.0), frame_ready=True)

    async def after_action(self, desktop: Desktop, action: Action) -> bool:
        """Whether the task has ended: with the first click, wherever it went."""
        return isinstance(action, Click)

    async def evaluate(self, desktop: Desktop, terminal: TerminalState, actions: list[Action]) -> Evaluation:
        """1.0 for a click into the square that was asked for, else 0.0."""
        clicks = [action for action in actions if isinstance(action, Click)]
        target = self._buttons[self._target]
        hit = any(click.x is not None and click.y is not None and target.contains(click.x, click.y) for click in clicks)
        return Evaluation(EvaluationStatus.OK, float(hit), "squares/1", f"{len(clicks)} clicks")

    async def oracle(self, desktop: Desktop) -> Action:
        """The next action of a perfect user: demonstrations are made of these. Raise `TaskError` if none is known."""
        if self._target not in self._buttons:
            raise TaskError("the episode has not begun")
        return Click(*self._buttons[self._target].center)

    async def close(self) -> None:
        """Let go of connections; there are none."""

    @staticmethod
    def _screen(desktop: Desktop) -> FakeDesktop:
        if not isinstance(desktop, FakeDesktop):
            raise TaskError(f"squares are drawn on a desktop of kind 'fake', not {desktop.spec.kind!r}")
        return cast(FakeDesktop, desktop)
