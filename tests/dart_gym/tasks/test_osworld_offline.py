"""OSWorld's tasks that need no network: set-up works, nothing comes of nothing, a solution scores 1, as OSWorld says.

After our evaluation OSWorld's own, unmodified, scores the same desktop through the OSWorld API.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dart_gym.core.actions import Done, Fail
from dart_gym.core.outcomes import EvaluationStatus, StepResult
from dart_gym.sessions.session import Session
from dart_gym.tasks.catalog.registry import task_from_dict
from dart_gym.tasks.osworld.solutions import known
from dart_gym.tasks.requirements.skip_reasons import skip_reasons
from tests.dart_gym.stock_osworld import stock_score_on
from tests.helpers.parameters import slow_but

EXAMPLES = Path(__file__).parents[2] / "data" / "osworld" / "examples"
TASKS = {path.stem: json.loads(path.read_text()) for path in sorted(EXAMPLES.glob("*/*.json"))}
FEASIBLE = sorted(known())
INFEASIBLE = sorted(
    name
    for name, raw in TASKS.items()
    if raw["evaluator"]["func"] == "infeasible"
    and not skip_reasons(task_from_dict(raw), (), lambda program: program != "code")
)
QUICK = ("3ce045a0",)  # the others are slow tests
DEADLINE_S = 180.0


def some(names: list[str], quick: tuple[str, ...]) -> list:
    return slow_but([name for name in names if name.startswith(quick)], names, name=lambda name: name[:8])


async def score(session: Session, raw: dict, *, solve: bool) -> tuple[float | None, float | None]:
    """Our score and OSWorld's, after the solution or after nothing."""
    started = await session.reset(task_from_dict(raw), seed=0, max_steps=100, deadline_s=DEADLINE_S)
    assert started.terminal is None, started.evaluation
    desktop = session.slot.booted
    action = await session.oracle(deadline_s=DEADLINE_S) if solve else Done()
    while not isinstance(action, Done):
        result = await session.step(action)
        assert result.terminal is None and not result.observation.action_error, result
        action = await session.oracle(deadline_s=DEADLINE_S)
    ended = await session.step(Done(), deadline_s=DEADLINE_S)
    return scored(ended), await stock_score_on(desktop, raw)


def scored(ended: StepResult) -> float | None:
    assert ended.evaluation is not None and ended.evaluation.status is EvaluationStatus.OK, ended.evaluation
    return ended.evaluation.score


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", some(FEASIBLE, QUICK))
async def test_nothing_scores_0_and_the_solution_1_as_osworld_says(name):
    async with Session() as session:
        assert await score(session, TASKS[name], solve=False) == (0.0, 0.0)
        assert await score(session, TASKS[name], solve=True) == (1.0, 1.0)


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.parametrize("name", some(INFEASIBLE, ("c288e301", "5ac2891a")))
async def test_an_infeasible_task_is_solved_by_saying_so(name):
    async with Session() as session:
        for action, expected in ((Done(), 0.0), (Fail(), 1.0)):
            started = await session.reset(task_from_dict(TASKS[name]), seed=0, deadline_s=DEADLINE_S)
            assert started.terminal is None, started.evaluation
            assert scored(await session.step(action, deadline_s=DEADLINE_S)) == expected


CHROME_SETTINGS = (
    *("data_delete_automacally", "enable_do_not_track", "enable_enhanced_safety_browsing", "enable_safe_browsing"),
)
"""Getters that say "true" of a setting that a task asks for."""


@pytest.mark.slow
@pytest.mark.desktop
@pytest.mark.timeout(600)
async def test_what_a_browser_writes_by_itself_is_no_solution():
    raw = TASKS["030eeff7-b492-4218-b312-701ec99ee0cc"]
    parts = {
        "func": ["exact_match"] * len(CHROME_SETTINGS),
        "conj": "or",
        "result": [{"type": name} for name in CHROME_SETTINGS],
        "expected": [raw["evaluator"]["expected"]] * len(CHROME_SETTINGS),
    }
    async with Session() as session:
        assert await score(session, {**raw, "evaluator": {**raw["evaluator"], **parts}}, solve=False) == (0.0, 0.0)


def test_there_are_solutions_for_the_tasks_that_can_be_solved_here():
    assert len(FEASIBLE) == 21 and set(FEASIBLE) <= set(TASKS)
    assert len(INFEASIBLE) == 11
