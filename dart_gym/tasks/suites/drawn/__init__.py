"""Suite `drawn`: forms, lists, menus, wizards on a drawn screen of 168x224 pixels; 3 to 12 actions, a millisecond each.

The twin of the multi-turn tasks on real programs: the same decisions without a browser, for experiments with many
seeds. Seeds below `FIRST_TRAINING_SEED` draw instances that no seed above ever draws (`Instance.key`).
"""

import functools
import itertools
import random

from dart_gym.core.actions import Action, Click, Type
from dart_gym.core.errors import TaskError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec, SettlePolicy
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED, held_out
from dart_gym.tasks.catalog.scenario import Prepared
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.suites.drawn.drawn_screens import Instance, State, next_step, solved
from dart_gym.tasks.suites.drawn.drawn_tasks import MAKERS

EVALUATOR = "drawn/1"
_SPEC = DesktopSpec(kind="fake", width=168, height=224, sandbox="none", reusable=True)


@functools.lru_cache(maxsize=4096)
def instance_of(name: str, seed: int) -> Instance:
    """Return what a seed draws for a task; held-out seeds and others never draw equal keys."""
    for attempt in itertools.count():
        instance = MAKERS[name][0](random.Random(f"{name}/{seed}/{attempt}"))
        if held_out(instance.key) == (seed < FIRST_TRAINING_SEED) and not solved(instance, instance.begin()):
            return instance
    raise AssertionError("itertools.count() does not end")


class DrawnScenario:
    """One drawn program in use."""

    def __init__(self) -> None:
        self._instance: Instance | None = None
        self._state = State("", {})

    async def prepare(self, desktop: Desktop, task: Task, seed: int) -> Prepared:
        """Draw the program that (task, seed) define."""
        if not isinstance(desktop, FakeDesktop):
            raise TaskError(f"task {task.id} needs a desktop of kind 'fake', not {desktop.spec.kind!r}")
        self._instance = instance_of(task.raw["id"], seed)
        self._state = self._instance.begin()
        self._show(desktop, keep_pointer=False)
        return Prepared(self._instance.instruction, SettlePolicy(quiet_ms=0.0), frame_ready=True)

    def _known(self) -> Instance:
        if self._instance is None:
            raise TaskError("there is no program to know the way in: call reset first")
        return self._instance

    def _show(self, desktop: FakeDesktop, *, keep_pointer: bool) -> None:
        widgets = self._known().pages[self._state.page]
        drawn = tuple(widget.drawn(self._state, number) for number, widget in enumerate(widgets))
        desktop.show(drawn, keep_pointer=keep_pointer)

    async def after_action(self, desktop: Desktop, action: Action) -> bool:
        """Let the program handle what was clicked or typed; True once it was submitted."""
        assert isinstance(desktop, FakeDesktop)  # `prepare` refuses others
        page = self._known().pages[self._state.page]
        for number in desktop.clicked:
            if not self._state.ended:
                self._state = self._state.clicked(page[int(number)])
            if self._state.page and self._known().pages[self._state.page] is not page:
                break  # the second click of a double click is the next page's
        if desktop.typed:
            self._state = self._state.typed(desktop.typed)
        self._show(desktop, keep_pointer=True)
        return self._state.ended

    async def evaluate(self, desktop: Desktop, terminal: TerminalState, actions: list[Action]) -> Evaluation:
        """1.0 if it was submitted with every value as asked, else 0.0."""
        right = solved(self._known(), self._state)
        success = self._state.ended and right and terminal is not TerminalState.FAIL
        detail = f"{'' if self._state.ended else 'not '}submitted, values {'as asked' if right else 'wrong'}"
        return Evaluation(EvaluationStatus.OK, float(success), EVALUATOR, detail)

    async def oracle(self, desktop: Desktop) -> Action:
        """The next action of a perfect user, from any state."""
        instance = self._known()
        if self._state.ended:
            raise TaskError("nothing is left to do: it was submitted")
        step = next_step(instance, self._state)
        if isinstance(step, str):
            return Type(step)
        return Click(*step.drawn(self._state, 0).center)

    async def close(self) -> None:
        """Nothing to let go of."""


def load_tasks() -> list[Task]:
    """All tasks of the suite."""
    return [Task(f"drawn/{name}", "", _SPEC, limit, {"id": name}) for name, (_, limit) in MAKERS.items()]


make_scenario = DrawnScenario
