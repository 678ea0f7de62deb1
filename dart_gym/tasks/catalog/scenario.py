"""A scenario is a task in action on one desktop: it prepares, watches, scores, and may know the way.

`Session` drives it and knows nothing of suites. One instance serves one desktop and one suite, episode after
episode; `dart_gym.tasks.catalog.registry.make_scenario` creates it.

Invariants:
    - `prepare` leaves the desktop in the state that (task, seed) define, and returns when the first screenshot
      will show it: readiness is probed, never slept for.
    - Everything here is privileged; a policy sees only screenshots and the instruction.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dart_gym.core.actions import Action
from dart_gym.core.outcomes import Evaluation, TerminalState
from dart_gym.desktops.base.desktop import Desktop, SettlePolicy, SettleResult
from dart_gym.tasks.catalog.task import Task


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `prepare` found out; `frame_ready`: the next screenshot shows the task for sure; how a wait `settled`."""

    instruction: str
    settle: SettlePolicy
    frame_ready: bool = False
    settled: SettleResult | None = None


class Scenario(Protocol):
    """How one suite's tasks run on a desktop."""

    async def prepare(self, desktop: Desktop, task: Task, seed: int) -> Prepared:
        """Bring the desktop into the task's initial state. Raises `TaskError` or `DesktopError`."""

    async def after_action(self, desktop: Desktop, action: Action) -> bool:
        """Wait for what only the scenario can see (such as the page's own clock); True when the task has ended."""

    async def evaluate(self, desktop: Desktop, terminal: TerminalState, actions: list[Action]) -> Evaluation:
        """Score the outcome. Never raises for an evaluator's failure: that is a status."""

    async def oracle(self, desktop: Desktop) -> Action:
        """The next action of a perfect user, from privileged state. Raises `TaskError` where none is known."""

    async def close(self) -> None:
        """Let go of connections (not of the desktop)."""


@runtime_checkable
class Measurable(Protocol):
    """What a scenario has besides that can tell how far a task is."""

    async def progress(self, desktop: Desktop) -> float | None:
        """The part of the task that is done, in [0, 1]; None where this task has no checkpoints."""


@runtime_checkable
class Patchable(Protocol):
    """What a scenario has besides that can bring about a solved state without a user's actions."""

    async def golden(self, desktop: Desktop) -> None:
        """Perform the task's golden patch.

        Raises:
            TaskError: if a step is malformed.
            DesktopError: if a step fails.
        """
