"""Tasks in OSWorld's format in action: set-up steps, readiness, OSWorld's evaluation, a scripted way to the goal.

The optional key "dart" of a task's JSON holds:
    parameters: what a seed chooses (`dart_gym.tasks.catalog.parameters`); "{name}" in instruction, config,
        evaluator, ready and oracle is replaced.
    ready: when the task has begun (`dart_gym.tasks.screen.readiness`).
    oracle: the actions of a perfect user (`oracle_script`); for some of OSWorld's own tasks, which lack the key,
        they are in a file beside the task's (`dart_gym.tasks.catalog.recorded_solution`), or in
        `dart_gym.tasks.osworld.solutions`. An infeasible task is solved by saying so.
    checkpoints: what is reached on the way, each written as an evaluator with built-in metrics and getters; looked at
        after every action, and once reached for good.
    golden: set-up steps that bring about a solved state without a user's actions, to certify the evaluator with.

Invariants:
    - Equal (task, seed) give equal instructions, set-up and scores.
    - The task's JSON is never changed.
"""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

from dart_gym.core.actions import Action
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.outcomes import Evaluation, TerminalState
from dart_gym.desktops.base.desktop import Desktop, SettlePolicy, SiteHost
from dart_gym.tasks.catalog.parameters import draw, fill
from dart_gym.tasks.catalog.registry import read_suite
from dart_gym.tasks.catalog.scenario import Prepared
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.evaluation.evaluator import evaluate, holds, read_checkpoints
from dart_gym.tasks.evaluation.score_rules import INFEASIBLE, Plan
from dart_gym.tasks.osworld.oracle_script import Script
from dart_gym.tasks.osworld.solutions import solution
from dart_gym.tasks.screen.readiness import wait_until_ready
from dart_gym.tasks.setup.download_cache import DownloadCache
from dart_gym.tasks.setup.setup_runner import run_steps

FOLDER_VARIABLE = "DART_GYM_OSWORLD"
# Toolkits draw at the next frame after they have handled their input: two frames at 60 Hz are 33 ms.
SETTLE = SettlePolicy(quiet_ms=60.0, max_ms=2000.0, reply_quiet_ms=34.0, busy_ms=4000.0)


class OSWorldScenario:
    """One OSWorld-format episode on a desktop."""

    def __init__(self) -> None:
        self.evaluator: dict[str, Any] = {}
        self._official = True
        self._oracle = Script("", [])
        self._taken = 0
        self._golden: list[dict[str, Any]] = []
        self._downloads: DownloadCache | None = None  # None: this user's own
        self._checkpoints, self._reached = list[Plan](), set[int]()

    async def prepare(self, desktop: Desktop, task: Task, seed: int) -> Prepared:
        """Run the set-up steps and wait until the task's window stands still."""
        instance = instantiate(task, seed)
        self.evaluator = instance["evaluator"]
        self._official = "dart" not in task.raw  # OSWorld's own: scored by its own metrics
        self._oracle, self._taken = Script(task.id, instance["oracle"]), 0
        self._golden = instance["golden"]
        self._checkpoints, self._reached = read_checkpoints(task.id, instance["checkpoints"]), set()
        await run_steps(desktop, instance["config"], downloads=self._downloads)
        settled = await wait_until_ready(desktop, instance["ready"])
        if desktop.spec.sites and isinstance(desktop, SiteHost):
            await desktop.seal_sites()
        return Prepared(instance["instruction"], SETTLE, frame_ready=True, settled=settled)

    async def after_action(self, desktop: Desktop, action: Action) -> bool:
        """Never ends a task by itself: the policy says when it is done."""
        self._taken += 1
        return False

    async def evaluate(self, desktop: Desktop, terminal: TerminalState, actions: list[Action]) -> Evaluation:
        """Score the desktop by the task's evaluator."""
        return await evaluate(desktop, self.evaluator, terminal, official=self._official, fetch=_fetch)

    async def oracle(self, desktop: Desktop) -> Action:
        """The next action of the script: the n-th after n actions, whatever they were."""
        return await self._oracle.action(desktop, self._taken)

    async def progress(self, desktop: Desktop) -> float | None:
        """The share of `dart.checkpoints` that have been reached so far; None without any."""
        for number, plan in enumerate(self._checkpoints):
            if number not in self._reached and await holds(desktop, plan):
                self._reached.add(number)
        return len(self._reached) / len(self._checkpoints) if self._checkpoints else None

    async def golden(self, desktop: Desktop) -> None:
        """Perform the steps of `dart.golden`.

        Raises:
            TaskError: if a step is malformed.
            DesktopError: if a step fails.
        """
        await run_steps(desktop, self._golden, downloads=self._downloads)

    async def close(self) -> None:
        """Nothing is held."""


async def _fetch(url: str, path: Path) -> None:
    """Put an expected file of an evaluation where its getter looks. Raises `DownloadError`."""
    source = await DownloadCache.default().fetch(url)
    await asyncio.to_thread(shutil.copyfile, source, path)


def instantiate(task: Task, seed: int) -> dict[str, Any]:
    """The task for one seed, placeholders filled: instruction, config, evaluator, ready, oracle. Pure."""
    extra = task.raw.get("dart") or {}
    values = draw(extra.get("parameters") or {}, task.id, seed)
    return {
        "instruction": fill(task.instruction, values),
        "config": fill(task.config, values),
        "evaluator": fill(task.evaluator, values),
        "ready": fill(extra.get("ready") or {}, values),
        "oracle": fill(extra.get("oracle") or list(task.solution), values, typed=True) or _known_solution(task),
        "checkpoints": fill(extra.get("checkpoints") or [], values),
        "golden": fill(extra.get("golden") or [], values),
    }


def _known_solution(task: Task) -> list[dict[str, Any]]:
    return [{"kind": "fail"}] if task.evaluator.get("func") == INFEASIBLE else solution(str(task.raw.get("id")))


def load_tasks() -> list[Task]:
    """Return the tasks in the folder that `DART_GYM_OSWORLD` names, or no tasks without the variable.

    Raises:
        ConfigurationError: if it does not name a folder.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return []
    if not Path(folder).is_dir():
        raise ConfigurationError(f"{FOLDER_VARIABLE}={folder} is no folder: let it name evaluation_examples/examples")
    return list(read_suite(Path(folder)).values())


make_scenario = OSWorldScenario
