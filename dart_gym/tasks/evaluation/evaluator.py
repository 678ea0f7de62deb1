"""Scores a desktop by a task's OSWorld evaluator: postconfig, getters, metrics, rules.

The rules are ours (`rules.py`). Getters and metrics are OSWorld's own, in the evaluator worker, for OSWorld's tasks and
wherever one is needed that is not built in; bundled suites use the built-in ones, so that they need no evaluator
environment. Both give the same scores.

Invariants:
    - The outcome is always an `Evaluation`. What breaks by itself is a status with a reason, never a score of 0; what
      the agent's own desktop has broken is a score of 0, never a status. `blame` tells which is which.
    - Files that are fetched lie in a directory that ends with the evaluation.
"""

import contextlib
import math
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

from dart_gym.core.errors import (
    DartGymError,
    DesktopError,
    DesktopStateError,
    EvaluationFailure,
    MissingDependencyError,
    TaskError,
)
from dart_gym.core.operation_deadline import OperationDeadline
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.desktops.confinement.file_removal import remove_tree
from dart_gym.tasks.evaluation import evaluator_environment
from dart_gym.tasks.evaluation.blame import NOT_THERE
from dart_gym.tasks.evaluation.cloud_files import Fetch, provide_cloud_files
from dart_gym.tasks.evaluation.evaluator_worker import TIMEOUT_S, EvaluatorWorker
from dart_gym.tasks.evaluation.getters import GETTERS
from dart_gym.tasks.evaluation.metric_control import works_without_the_agent
from dart_gym.tasks.evaluation.metrics import METRICS
from dart_gym.tasks.evaluation.score_rules import Check, Conj, Plan, combine, decided, early_score, read_evaluator
from dart_gym.tasks.evaluation.watched_desktop import WatchedDesktop, watch
from dart_gym.tasks.setup.setup_runner import StepError, run_steps
from dart_gym.utils.owned_directories import make_owned_directory

EVALUATOR = "dart-rules/1.0"
_LONGEST_SOCKET_FOLDER = 40


async def evaluate(
    desktop: Desktop,
    evaluator: dict[str, Any],
    terminal: TerminalState,
    *,
    official: bool = False,
    fetch: Fetch | None = None,
    timeout: float = TIMEOUT_S,
) -> Evaluation:
    """Score an episode by OSWorld's `evaluator`, with its own metrics even where they are built in if `official`.

    `fetch` writes what a URL holds to a path, for expected files (`cloud_file`), which the worker cannot download.
    """
    name = EVALUATOR
    foreign = list[str]()
    watched = watch(desktop)
    try:
        plan = read_evaluator(evaluator)
        foreign = not_built_in(plan)
        if official or foreign:
            name = evaluator_environment.EVALUATOR
        with cache_directory() as cache:
            async with judged(), _scorer(watched, plan, cache, name, fetch, timeout) as scorer:
                score, detail = await _run(watched, evaluator, plan, terminal, cache, scorer)
    except DesktopStateError as error:
        return Evaluation(EvaluationStatus.OK, 0.0, name, str(error))
    except DesktopError as error:
        return Evaluation(EvaluationStatus.ENVIRONMENT_ERROR, None, name, str(error))
    except MissingDependencyError as error:
        needs = f"{', '.join(foreign)}: " if foreign else ""
        return Evaluation(EvaluationStatus.EVALUATION_ERROR, None, name, f"{needs}{error}")
    except DartGymError as error:
        return Evaluation(EvaluationStatus.EVALUATION_ERROR, None, name, str(error))
    return Evaluation(EvaluationStatus.OK, score, name, detail)


def judged() -> OperationDeadline:
    """Return a part of an operation without a deadline of its own: inside, what a busy machine delays goes on."""
    return OperationDeadline(math.inf, movable=True)


def read_checkpoints(task_id: str, checkpoints: Any) -> list[Plan]:
    """Return the plans of a task's checkpoints. Pure.

    Raises:
        TaskError: if a checkpoint is malformed, or needs more than what is built in.
    """
    try:
        plans = [read_evaluator(checkpoint) for checkpoint in checkpoints]
    except (EvaluationFailure, AttributeError, TypeError) as error:
        raise TaskError(f"task {task_id}: dart.checkpoints: {error}") from error
    for foreign in map(not_built_in, plans):
        if foreign:
            raise TaskError(f"task {task_id}: dart.checkpoints: {', '.join(foreign)} is not built in")
    return plans


async def holds(desktop: Desktop, plan: Plan) -> bool:
    """Return whether all checks of a checkpoint give 1 now; a check without its file, say, does not."""
    with cache_directory() as cache, contextlib.suppress(EvaluationFailure):
        scores = [(await _BuiltIn(desktop, cache).check(check, plan.conj))[0] for check in plan.checks]
        return combine(plan.conj, scores) == 1.0
    return False


def not_built_in(plan: Plan) -> list[str]:
    """The metrics and getters of a plan that only OSWorld's evaluator has. Pure."""
    configs = [config for check in plan.checks for config in (check.result, check.expected) if config]
    metrics = [f"metric {check.func}" for check in plan.checks if check.func not in METRICS]
    return metrics + [f"getter {config.get('type')}" for config in configs if config.get("type") not in GETTERS]


class _Scorer(Protocol):
    async def check(self, check: Check, conj: Conj) -> tuple[float, str]:
        """The score of one check, and what was looked at."""


@contextlib.asynccontextmanager
async def _scorer(
    desktop: WatchedDesktop, plan: Plan, cache: Path, name: str, fetch: Fetch | None, timeout: float
) -> AsyncIterator[_Scorer | None]:
    """Return what scores the checks of a plan, or None if it has no checks."""
    if plan.infeasible:
        yield None
    elif name != evaluator_environment.EVALUATOR:
        yield _BuiltIn(cast(Desktop, desktop), cache)
    else:
        async with EvaluatorWorker(
            cast(Desktop, desktop), evaluator_environment.find(), cache, timeout=timeout
        ) as worker:
            await worker.start(plan.checks)  # it imports what it needs while the steps of postconfig run
            with desktop.elsewhere():
                await provide_cloud_files(plan, cache, fetch)
            yield worker


@contextlib.contextmanager
def cache_directory() -> Iterator[Path]:
    """The directory of one evaluation, whose path is short enough for sockets beside it."""
    folder = tempfile.gettempdir()
    short = folder if len(folder) <= _LONGEST_SOCKET_FOLDER else "/tmp"  # a socket's path has 107 bytes
    directory = make_owned_directory("evaluation", short)
    try:
        cache = directory / "cache"
        cache.mkdir()
        yield cache
    finally:
        remove_tree(directory)  # whatever metrics left there


async def _run(
    desktop: WatchedDesktop,
    evaluator: dict[str, Any],
    plan: Plan,
    terminal: TerminalState,
    cache: Path,
    scorer: _Scorer | None,
) -> tuple[float, str]:
    """Postconfig, then the last action, then the checks: the order of `DesktopEnv.evaluate`."""
    await run_steps(cast(Desktop, desktop), evaluator.get("postconfig") or [], cache=cache)
    early = early_score(plan, terminal)
    if early is not None or scorer is None:
        return early or 0.0, f"decided by the last action ({terminal.value})"
    scores, words = [], []
    for check in plan.checks:
        score, state = await scorer.check(check, plan.conj)
        desktop.check()  # a getter may have taken the machine's failure for "not there"
        scores.append(score)
        words.append(f"{check.func}={score:g}" + (f" ({state})" if state and score != 1.0 else ""))
        if decided(plan.conj, score):
            break
    return combine(plan.conj, scores), ", ".join(words)


class _BuiltIn:
    """Scores with the getters and metrics of this package."""

    def __init__(self, desktop: Desktop, cache: Path) -> None:
        self._desktop, self._cache = desktop, cache

    async def check(self, check: Check, conj: Conj) -> tuple[float, str]:
        """The score of one check."""
        metric = METRICS[check.func]
        state, *others = [await self._get(config) for config in (check.result, check.expected) if config]
        try:
            return float(metric(state, *others, **check.options)), ""
        except (TypeError, ValueError, KeyError, AttributeError, OSError, MemoryError, RecursionError) as error:
            words = f"metric {check.func} failed: {type(error).__name__}: {error}"
            if works_without_the_agent(metric, others, check.options):
                return 0.0, words
            raise EvaluationFailure(words) from error

    async def _get(self, config: dict[str, Any]) -> Any:
        try:
            return await GETTERS[config["type"]](self._desktop, config, self._cache)
        except DesktopStateError:
            return NOT_THERE
        except KeyError as error:
            raise EvaluationFailure(f"getter {config['type']} lacks the parameter {error}") from error
        except StepError as error:
            raise EvaluationFailure(f"getter {config['type']}: {error}") from error
