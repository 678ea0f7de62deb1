"""Scores a desktop by a task's OSWorld evaluator: postconfig, getters, metrics, rules.

Invariants:
    - The outcome is always an `Evaluation`; what breaks here is a status with a reason, never a score of 0.
    - Files that are fetched lie in a directory that ends with the evaluation.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from dart_gym.desktops.base import Desktop
from dart_gym.errors import DesktopError, EvaluationFailure, TaskError
from dart_gym.outcomes import Evaluation, EvaluationStatus, TerminalState
from dart_gym.tasks.evaluation.getters import GETTERS
from dart_gym.tasks.evaluation.metrics import METRICS
from dart_gym.tasks.evaluation.rules import Check, combine, decided, early_score, read_evaluator
from dart_gym.tasks.setup import StepError, run_steps

EVALUATOR = "dart-rules/1.0"


async def evaluate(desktop: Desktop, evaluator: dict[str, Any], terminal: TerminalState) -> Evaluation:
    """Score an episode.

    Args:
        desktop: its desktop, as the last action left it.
        evaluator: OSWorld's `evaluator`, placeholders filled.
        terminal: how the episode ended.
    """
    try:
        score, detail = await _score(desktop, evaluator, terminal)
    except (EvaluationFailure, TaskError) as error:
        return Evaluation(EvaluationStatus.EVALUATION_ERROR, None, EVALUATOR, str(error))
    except DesktopError as error:
        return Evaluation(EvaluationStatus.ENVIRONMENT_ERROR, None, EVALUATOR, str(error))
    return Evaluation(EvaluationStatus.OK, score, EVALUATOR, detail)


async def _score(desktop: Desktop, evaluator: dict[str, Any], terminal: TerminalState) -> tuple[float, str]:
    plan = read_evaluator(evaluator)
    for check in plan.checks:
        _require_known(check)
    early = early_score(plan, terminal)
    if early is not None:
        return early, f"decided by the last action ({terminal.value})"
    scores: list[float] = []
    with tempfile.TemporaryDirectory(prefix="dart-evaluation-") as directory:
        cache = Path(directory)
        await run_steps(desktop, evaluator.get("postconfig") or [], cache=cache)
        for check in plan.checks:
            scores.append(await _apply(desktop, check, cache))
            if decided(plan.conj, scores[-1]):
                break
    detail = ", ".join(f"{check.func}={score:g}" for check, score in zip(plan.checks, scores, strict=False))
    return combine(plan.conj, scores), detail


async def _apply(desktop: Desktop, check: Check, cache: Path) -> float:
    arguments = [await _get(desktop, config, cache) for config in (check.result, check.expected) if config]
    try:
        return float(METRICS[check.func](*arguments, **check.options))
    except (TypeError, ValueError, KeyError, AttributeError, OSError) as error:
        raise EvaluationFailure(f"metric {check.func} failed: {type(error).__name__}: {error}") from error


async def _get(desktop: Desktop, config: dict[str, Any], cache: Path) -> Any:
    try:
        return await GETTERS[config["type"]](desktop, config, cache)
    except KeyError as error:
        raise EvaluationFailure(f"getter {config['type']} lacks the parameter {error}") from error
    except StepError as error:
        raise EvaluationFailure(f"getter {config['type']}: {error}") from error


def _require_known(check: Check) -> None:
    if check.func not in METRICS:
        raise EvaluationFailure(f"metric {check.func!r} is not built in; built in: {', '.join(sorted(METRICS))}")
    for config in (check.result, check.expected):
        if config and config.get("type") not in GETTERS:
            raise EvaluationFailure(
                f"getter {config.get('type')!r} is not built in; built in: {', '.join(sorted(GETTERS))}"
            )
