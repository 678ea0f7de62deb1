"""How OSWorld combines metrics, and what the FAIL action means. Pure.

Source: `DesktopEnv.evaluate` of desktop-env 1.0.2.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dart_gym.core.errors import EvaluationFailure
from dart_gym.core.outcomes import TerminalState

INFEASIBLE = "infeasible"
Conj: TypeAlias = Literal["and", "or"]


@dataclass(frozen=True, slots=True)
class Check:
    """One metric, with configurations of the getters of actual and (None where it takes none) expected state."""

    func: str
    result: dict[str, Any]
    expected: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """An evaluator, read: its checks in order and how they are combined."""

    checks: tuple[Check, ...]
    conj: Conj = "and"
    infeasible: bool = False


def read_evaluator(evaluator: dict[str, Any]) -> Plan:
    """Read OSWorld's `evaluator`: a metric, or lists of equal length with fillers. Raises `EvaluationFailure`."""
    func = evaluator.get("func")
    if func == INFEASIBLE:
        return Plan((), infeasible=True)
    conj: Conj = evaluator.get("conj") or "and"
    if conj not in ("and", "or"):
        raise EvaluationFailure(f"evaluator: 'conj' must be 'and' or 'or', got {conj!r}")
    if isinstance(func, str):
        return Plan((_check(func, *(evaluator.get(key) for key in ("result", "expected", "options"))),), conj)
    if not isinstance(func, list) or not func:
        raise EvaluationFailure("evaluator: 'func' must be a metric's name or a list of them")
    columns = []
    for key in ("result", "expected", "options"):
        column = evaluator.get(key) or [None] * len(func)
        if not isinstance(column, list) or len(column) != len(func):
            raise EvaluationFailure(f"evaluator: 'func' lists {len(func)} metrics, so {key!r} must list as many")
        columns.append(column)
    return Plan(tuple(_check(*row) for row in zip(func, *columns, strict=True)), conj)


def _check(func: Any, result: Any, expected: Any, options: Any) -> Check:
    if not isinstance(func, str):
        raise EvaluationFailure(f"evaluator: a metric's name must be text, got {func!r}")
    for name, part in (("result", result), ("expected", expected), ("options", options)):
        if part is not None and not isinstance(part, dict):
            raise EvaluationFailure(f"evaluator: {name!r} of {func} must be an object, got {part!r}")
    if not result:
        raise EvaluationFailure(f"evaluator: {func} has no 'result'")
    return Check(func, result, expected or None, options or {})


def early_score(plan: Plan, terminal: TerminalState) -> float | None:
    """The score where the last action alone decides (infeasible, or not); None where the metrics do."""
    failed = terminal is TerminalState.FAIL
    if plan.infeasible:
        return 1.0 if failed else 0.0
    return 0.0 if failed else None


def decided(conj: Conj, score: float) -> bool:
    """Return whether a single metric's score makes the remaining ones superfluous."""
    return score == 0.0 if conj == "and" else score == 1.0


def combine(conj: Conj, scores: list[float]) -> float:
    """Combine the scores of the metrics that were looked at.

    `and`: 0 as soon as one is 0, else the mean. `or`: the maximum.

    Raises:
        EvaluationFailure: a score is not in [0, 1].
    """
    for score in scores:
        if math.isnan(score) or not 0.0 <= score <= 1.0:
            raise EvaluationFailure(f"a metric gave {score}, which is not in [0, 1]")
    if not scores:
        raise EvaluationFailure("the evaluator holds no metric")
    if conj == "or":
        return max(scores)
    return 0.0 if 0.0 in scores else sum(scores) / len(scores)
