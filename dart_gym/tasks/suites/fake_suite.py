"""The suite "fake": buttons on a drawn desktop. Deterministic per seed, with an oracle, milliseconds an episode.

For tests, for trying trainers without a display, and as the shortest example of a suite.
"""

import random
from typing import cast

from dart_gym.core.actions import Action, Click
from dart_gym.core.errors import TaskError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec, SettlePolicy
from dart_gym.desktops.fake_desktop import Button, FakeDesktop
from dart_gym.tasks.catalog.scenario import Prepared
from dart_gym.tasks.catalog.task import Task

EVALUATOR = "fake/1"
LABELS = ("OK", "Cancel", "Yes", "No", "Save", "Help")
COLORS = {"red": (240, 110, 110), "green": (120, 210, 120), "blue": (120, 160, 250), "yellow": (240, 220, 90)}
COLUMNS, ROWS = 2, 3
_SPEC = DesktopSpec(kind="fake", width=168, height=224, sandbox="none", reusable=True)
TASKS = (
    Task("fake/click-button", "", _SPEC, max_steps=1, raw={"id": "click-button", "clicks": 1, "buttons": 4}),
    Task("fake/two-steps", "", _SPEC, max_steps=4, raw={"id": "two-steps", "clicks": 2, "buttons": 4}),
)


class FakeScenario:
    """Places labelled, coloured buttons at random cells and asks for one or two of them in order."""

    def __init__(self) -> None:
        self._buttons: tuple[Button, ...] = ()
        self._targets: tuple[str, ...] = ()

    async def prepare(self, desktop: Desktop, task: Task, seed: int) -> Prepared:
        """Draw the buttons that (task, seed) define."""
        if not isinstance(desktop, FakeDesktop):
            raise TaskError(f"task {task.id} needs a desktop of kind 'fake', not {desktop.spec.kind!r}")
        rng = random.Random(f"{task.id}/{seed}")
        count, clicks = task.raw["buttons"], task.raw["clicks"]
        cells = rng.sample(range(COLUMNS * ROWS), count)
        labels, colors = rng.sample(LABELS, count), rng.sample(sorted(COLORS), count)
        width, height = task.desktop.width // COLUMNS, task.desktop.height // ROWS
        self._buttons = tuple(
            Button(
                label,
                x=cell % COLUMNS * width + width // 8,
                y=cell // COLUMNS * height + height // 4,
                width=width * 3 // 4,
                height=height // 2,
                color=COLORS[color],
            )
            for cell, label, color in zip(cells, labels, colors, strict=True)
        )
        self._targets = tuple(labels[:clicks])
        desktop.show(self._buttons)
        names = [f"the {color} button {label!r}" for label, color in zip(labels, colors, strict=True)][:clicks]
        return Prepared(f"Click {', then '.join(names)}.", SettlePolicy(quiet_ms=0.0), frame_ready=True)

    async def after_action(self, desktop: Desktop, action: Action) -> bool:
        """The task ends with the last click asked for, or with the first wrong one."""
        clicked = _clicked(desktop)
        return len(clicked) >= len(self._targets) or clicked != self._targets[: len(clicked)]

    async def evaluate(self, desktop: Desktop, terminal: TerminalState, actions: list[Action]) -> Evaluation:
        """1.0 if exactly the asked buttons were clicked in order, else 0.0."""
        clicked = _clicked(desktop)
        success = clicked == self._targets and terminal is not TerminalState.FAIL
        detail = f"clicked {', '.join(clicked) or 'nothing'}; asked for {', '.join(self._targets)}"
        return Evaluation(EvaluationStatus.OK, float(success), EVALUATOR, detail)

    async def progress(self, desktop: Desktop) -> float:
        """The share of the clicks asked for that were made, in order; 0 after a wrong one."""
        clicked = _clicked(desktop)
        return len(clicked) / len(self._targets) if clicked == self._targets[: len(clicked)] else 0.0

    async def oracle(self, desktop: Desktop) -> Action:
        """A click in the middle of the next button asked for."""
        done = len(_clicked(desktop))
        if done >= len(self._targets):
            raise TaskError("nothing is left to do")
        button = next(button for button in self._buttons if button.label == self._targets[done])
        return Click(*button.center)

    async def close(self) -> None:
        """Nothing to let go of."""


def _clicked(desktop: Desktop) -> tuple[str, ...]:
    return tuple(cast(FakeDesktop, desktop).clicked)


def load_tasks() -> tuple[Task, ...]:
    """All tasks of the suite."""
    return TASKS


make_scenario = FakeScenario
