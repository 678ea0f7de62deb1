"""Each pair scores 1 solved and 0 unsolved, by each of its functions, on a real desktop by OSWorld's evaluator."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dart_gym.core.actions import Action, Done, Fail
from dart_gym.core.errors import DartGymError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.catalog.registry import read_suite
from dart_gym.tasks.osworld.osworld_scenario import SETTLE, OSWorldScenario
from dart_gym.tasks.requirements.solved_coverage import coverage
from dart_gym.tasks.setup.download_cache import DownloadCache
from dart_gym.utils.png import encode_png
from tests.dart_gym.solved.files.stand_ins import provide
from tests.dart_gym.solved.pair_suite import all_pairs
from tests.dart_gym.solved.solved_pairs import SolvedPair
from tests.dart_gym.tasks.osworld_tasks import BUNDLED

PAIRS = {pair.id: pair for pair in all_pairs()}


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> DownloadCache:
    return DownloadCache(tmp_path_factory.mktemp("hub"), offline=True)


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

    async def score(self, terminal: TerminalState, *, solved: bool) -> Evaluation:
        """The score of all functions: solved the smallest counts, unsolved the largest, so that each must agree."""
        evaluator = self.pair.evaluator
        if isinstance(evaluator["func"], list):
            evaluator = {**evaluator, "conj": "and" if solved else "or"}
        self.scenario.evaluator = evaluator
        evaluation = await self.scenario.evaluate(self.desktop, terminal, [])
        assert evaluation.status is EvaluationStatus.OK, evaluation
        return evaluation


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if pair.quick else pytest.mark.slow) for name, pair in PAIRS.items()]
)
async def test_a_pair_scores_0_unsolved_and_1_solved(name, cache, monkeypatch, tmp_path):
    pair, started = PAIRS[name], time.monotonic()
    provide(pair, cache)
    monkeypatch.setenv("DART_GYM_CACHE", str(cache.directory))
    monkeypatch.setenv("DART_GYM_OFFLINE", "1")
    stage = Stage(pair)
    try:
        await stage.begin()
        unsolved = await stage.score(TerminalState.DONE, solved=False)
        assert unsolved.score == 0.0, unsolved
        if pair.fresh:
            await stage.desktop.stop()
            await stage.begin()
        solved = await stage.score(await stage.solve(), solved=True)
        assert solved.score == pytest.approx(1.0, abs=1e-9), solved
        assert time.monotonic() - started < pair.max_s
    except (AssertionError, DartGymError, TimeoutError):
        (tmp_path / "screen.png").write_bytes(encode_png(await stage.desktop.screenshot()))
        raise
    finally:
        await stage.desktop.stop()


def test_pairs_have_names_of_their_own():
    assert len(PAIRS) == len(all_pairs())


def test_the_docs_name_the_pairs_that_hold_each_part_of_osworlds_tasks():
    """`dart-gym tasks check --solved` writes the table; each part of the tasks that came along must be in it."""
    page = (Path(__file__).parents[3] / "docs" / "guides" / "osworld.md").read_text(encoding="utf-8")
    tasks = read_suite(BUNDLED).values()
    pairs = {f"osworld/{task.raw['id'][:8]}": task for task in tasks}
    pairs |= {f"SolvedPairs/{name}": pair.task for name, pair in PAIRS.items()}
    rows = coverage(tasks, pairs)
    assert all(row.pairs or row.reason for row in rows)
    for row in rows:
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {row.kind} | `{row.name}` |")]
        assert row.reason in line and any(pair in line for pair in row.pairs or [row.reason])
