"""Each pair scores 1 solved and 0 unsolved, by each of its functions, on a real desktop by OSWorld's evaluator."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dart_gym.core.actions import Action, Done, Fail
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.evaluation.score_rules import read_evaluator
from dart_gym.tasks.osworld.osworld_scenario import SETTLE, OSWorldScenario
from dart_gym.tasks.setup.download_cache import DownloadCache
from tests.dart_gym.solved.pair_suite import all_pairs
from tests.dart_gym.solved.solved_pairs import SolvedPair
from tests.dart_gym.solved.stand_ins import provide

PAIRS = {pair.id: pair for pair in all_pairs()}


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> DownloadCache:
    return DownloadCache(tmp_path_factory.mktemp("hub"), offline=True)


def parts(evaluator: dict[str, Any]) -> list[dict[str, Any]]:
    """An evaluator for each function of one, without postconfig."""
    rows = [check for check in read_evaluator(evaluator).checks]
    return [{"func": row.func, "result": row.result, "expected": row.expected, "options": row.options} for row in rows]


class Stage:
    """A pair's task on a desktop."""

    def __init__(self, pair: SolvedPair) -> None:
        self.pair, self.scenario, self.actions = pair, OSWorldScenario(), list[Action]()

    async def begin(self) -> None:
        """Set the task up on a new desktop."""
        self.desktop: Desktop = make_desktop(self.pair.task.desktop)
        await self.desktop.start()
        await self.scenario.prepare(self.desktop, self.pair.task, 0)

    async def solve(self) -> TerminalState:
        """Carry the solution out."""
        while not isinstance(action := await self.scenario.oracle(self.desktop), (Done, Fail)):
            await self.desktop.perform(action)
            await self.desktop.settle(SETTLE)
            await self.scenario.after_action(self.desktop, action)
        return TerminalState.DONE if isinstance(action, Done) else TerminalState.FAIL

    async def scores(self, terminal: TerminalState) -> list[float | None]:
        """The score of the evaluator, then that of each of its functions."""
        found = [await self.scenario.evaluate(self.desktop, terminal, [])]
        alone = OSWorldScenario()
        for part in parts(self.pair.evaluator) if len(parts(self.pair.evaluator)) > 1 else ():
            alone._evaluator = part
            found.append(await alone.evaluate(self.desktop, terminal, []))
        assert all(evaluation.status is EvaluationStatus.OK for evaluation in found), found
        self.detail = found
        return [evaluation.score for evaluation in found]


@pytest.mark.desktop
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if pair.quick else pytest.mark.slow) for name, pair in PAIRS.items()]
)
async def test_a_pair_scores_0_unsolved_and_1_solved(name, cache, monkeypatch):
    pair, started = PAIRS[name], time.monotonic()
    provide(pair, cache)
    monkeypatch.setenv("DART_GYM_CACHE", str(cache.directory))
    monkeypatch.setenv("DART_GYM_OFFLINE", "1")
    stage = Stage(pair)
    try:
        await stage.begin()
        unsolved = await stage.scores(TerminalState.DONE)
        assert unsolved == [0.0] * len(unsolved), stage.detail
        if pair.fresh:
            await stage.desktop.stop()
            await stage.begin()
        solved = await stage.scores(await stage.solve())
        assert solved == [1.0] * len(solved), stage.detail
        assert time.monotonic() - started < pair.max_s
    finally:
        await stage.desktop.stop()


def test_pairs_have_names_of_their_own():
    assert len(PAIRS) == len(all_pairs())
