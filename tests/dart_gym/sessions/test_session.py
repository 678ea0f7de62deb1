"""Sessions on the drawn desktop: how episodes go and end, and what happens when something breaks."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from dart_gym.core.actions import Action, Click, Done, Fail, Move, Type, Wait
from dart_gym.core.errors import (
    ConfigurationError,
    DesktopError,
    EpisodeStateError,
    EvaluationFailure,
    MissingDependencyError,
    TaskError,
    UnknownTaskError,
)
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.sessions.session import Session
from dart_gym.sessions.slot import Slot
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.suites.fake_suite import TASKS, FakeScenario


class Desktops:
    """Makes fake desktops and remembers them."""

    def __init__(self) -> None:
        self.made: list[FakeDesktop] = []

    def __call__(self, spec: DesktopSpec) -> FakeDesktop:
        self.made.append(FakeDesktop(spec))
        return self.made[-1]

    async def alive(self) -> list[bool]:
        """Which still live, once those that were given up are stopped in the background."""
        await asyncio.sleep(0)
        return [desktop.alive for desktop in self.made]


@pytest.fixture
def desktops() -> Desktops:
    return Desktops()


@pytest.fixture
async def session(desktops):
    slot = Slot("test", desktops)
    yield Session(slot)
    await slot.close()


@pytest.mark.parametrize("task", [task.id for task in TASKS])
async def test_the_oracle_solves_every_seed(session, task):
    for seed in range(20):
        result = await session.reset(task, seed=seed)
        assert result.observation.instruction.startswith("Click the ")
        while result.terminal is None:
            result = await session.step(await session.oracle())
        assert (result.terminal, result.reward) == (TerminalState.DONE, 1.0)
        assert result.evaluation.status is EvaluationStatus.OK


async def test_a_result_says_what_when_and_how_long(session):
    first = await session.reset("fake/two-steps", seed=5)
    assert first.step_index == 0 and first.info["task_id"] == "fake/two-steps" and first.info["seed"] == 5
    assert set(first.timings) == {"queue", "boot", "prepare", "capture", "total"}
    second = await session.step(Move(3, 3))
    assert second.step_index == 1 and second.info == first.info
    assert set(second.timings) == {"perform", "settle", "watch", "capture", "total"}
    last = await session.step(Done())
    assert "evaluate" in last.timings
    assert last.timings["total"] >= sum(v for k, v in last.timings.items() if k != "total")


async def test_equal_seeds_give_equal_screens(session):
    frames = [(await session.reset("fake/two-steps", seed=seed)).observation.screenshot for seed in (1, 1, 2)]
    assert np.array_equal(frames[0], frames[1]) and not np.array_equal(frames[0], frames[2])


async def test_a_wrong_click_ends_the_task_with_a_score_of_zero(session):
    await session.reset("fake/two-steps", seed=0)
    right = await session.oracle()
    await session.step(right)
    result = await session.step(right)  # the second button was asked for
    assert result.terminal is TerminalState.DONE and result.evaluation.score == 0.0


async def test_the_step_limit_is_scored(session):
    await session.reset("fake/two-steps", seed=0, max_steps=2)
    assert (await session.step(Wait(0))).terminal is None
    result = await session.step(Wait(0))
    assert result.terminal is TerminalState.STEP_LIMIT and result.evaluation.score == 0.0 and result.step_index == 2


async def test_the_time_limit_is_scored(session):
    await session.reset("fake/two-steps", seed=0, time_limit_s=0.01)
    result = await session.step(Wait(0.02))
    assert result.terminal is TerminalState.TIME_LIMIT and result.evaluation.score == 0.0


@pytest.mark.parametrize(("action", "terminal"), [(Done("42"), TerminalState.DONE), (Fail(), TerminalState.FAIL)])
async def test_the_policy_ends_the_episode(session, action, terminal):
    await session.reset("fake/two-steps", seed=0)
    result = await session.step(action)
    assert result.terminal is terminal and result.evaluation.score == 0.0


async def test_an_impossible_action_is_part_of_the_observation(session):
    await session.reset("fake/two-steps", seed=0)
    result = await session.step(Click(5000, 5))
    assert result.terminal is None and "outside" in result.observation.action_error
    assert (await session.step(Move(1, 1))).observation.action_error == ""


async def test_finish_scores_what_the_policy_decided_and_nothing_else(session):
    await session.reset("fake/click-button", seed=0)
    result = await session.finish(TerminalState.PARSE_ERROR)
    assert result.terminal is TerminalState.PARSE_ERROR and result.evaluation.score == 0.0
    await session.reset("fake/click-button", seed=0)
    result = await session.finish(TerminalState.MODEL_ERROR)
    assert result.terminal is TerminalState.MODEL_ERROR and result.evaluation.score is None


async def test_operations_need_a_running_episode(session):
    for operation in (
        session.step(Move(1, 1)),
        session.finish(TerminalState.STEP_LIMIT),
        session.oracle(),
        session.golden(),
    ):
        with pytest.raises(EpisodeStateError, match="call reset first"):
            await operation
    await session.reset("fake/click-button", seed=0)
    with pytest.raises(TaskError, match="fake/click-button: its suite has no golden patches"):
        await session.golden()
    await session.step(Done())
    with pytest.raises(EpisodeStateError):
        await session.step(Done())


async def test_wrong_arguments_are_raised(session):
    with pytest.raises(UnknownTaskError, match="fake/click-button"):
        await session.reset("fake/click-buton", seed=0)
    with pytest.raises(ConfigurationError, match="width"):
        await session.reset("fake/click-button", seed=0, desktop={"widht": 5})
    with pytest.raises(ConfigurationError, match="16384"):
        await session.reset("fake/click-button", seed=0, desktop={"width": "wide"})
    with pytest.raises(ConfigurationError, match="max_steps"):
        await session.reset("fake/click-button", seed=0, max_steps=0)


async def test_the_screen_size_can_be_overridden(session):
    result = await session.reset("fake/click-button", seed=0, desktop={"width": 320, "height": 200})
    assert result.observation.screenshot.shape == (200, 320, 3)
    assert (await session.step(await session.oracle())).reward == 1.0


async def test_a_reusable_desktop_is_kept_for_an_equal_spec_only(session, desktops):
    await session.reset("fake/click-button", seed=0)
    await session.reset("fake/two-steps", seed=0)
    assert len(desktops.made) == 1
    await session.reset("fake/two-steps", seed=0, desktop={"width": 200})
    assert await desktops.alive() == [False, True]


async def test_a_desktop_that_is_not_reusable_serves_one_episode(session, desktops):
    task = Task("fake/click-button", "", DesktopSpec(kind="fake"), 1, TASKS[0].raw)
    await session.reset(task, seed=0)
    await session.reset(task, seed=0)
    assert await desktops.alive() == [False, True]


async def test_a_crash_is_a_value_and_the_next_reset_gets_a_fresh_desktop(session, desktops):
    await session.reset("fake/two-steps", seed=0)
    desktops.made[0].crash()
    result = await session.step(Move(1, 1))
    assert result.terminal is TerminalState.ENV_ERROR and result.evaluation.score is None
    assert result.evaluation.status is EvaluationStatus.ENVIRONMENT_ERROR
    assert "crashed" in result.observation.action_error and result.observation.screenshot.shape == (224, 168, 3)
    assert (await session.reset("fake/two-steps", seed=0)).terminal is None
    assert len(desktops.made) == 2


async def test_a_boot_that_fails_is_a_value(desktops):
    class Broken(FakeDesktop):
        async def start(self, *, timeout: float = 60.0) -> None:
            raise DesktopError("no screen")

    slot = Slot("broken", Broken)
    result = await Session(slot).reset("fake/two-steps", seed=0)
    assert result.terminal is TerminalState.ENV_ERROR and "no screen" in result.evaluation.detail
    await slot.close()


async def test_a_missing_program_is_raised():
    class Lacking(FakeDesktop):
        async def start(self, *, timeout: float = 60.0) -> None:
            raise MissingDependencyError("apt-get install xvfb")

    slot = Slot("lacking", Lacking)
    with pytest.raises(MissingDependencyError, match="apt-get"):
        await Session(slot).reset("fake/two-steps", seed=0)
    await slot.close()


async def test_a_deadline_that_passes_recycles_the_desktop(session, desktops):
    await session.reset("fake/two-steps", seed=0)
    result = await session.step(Wait(30), deadline_s=0.05)
    assert result.terminal is TerminalState.ENV_ERROR and "deadline of 0.05 s" in result.evaluation.detail
    await session.reset("fake/two-steps", seed=0)
    assert await desktops.alive() == [False, True]


class FailingScenario(FakeScenario):
    """An evaluator that fails, one that has a defect, and one whose desktop dies in it."""

    async def evaluate(self, desktop, terminal, actions: list[Action]):
        match actions[0]:
            case Type(text="defect"):
                raise KeyError("a defect")
            case Type(text="crash"):
                raise DesktopError("gone")
        raise EvaluationFailure("the file could not be read")


class Failing:
    make_scenario = FailingScenario

    def load_tasks(self):
        return [Task("evaluator", "", TASKS[1].desktop, 1, TASKS[1].raw)]


FAILING = f"{__name__}:Failing/evaluator"


async def test_a_failing_evaluator_gives_no_score(session):
    await session.reset(FAILING, seed=0)
    result = await session.step(Type("x"))
    assert result.terminal is TerminalState.STEP_LIMIT
    assert result.evaluation.status is EvaluationStatus.EVALUATION_ERROR and result.evaluation.score is None


async def test_a_desktop_that_dies_in_the_evaluator_is_an_environment_error(session):
    await session.reset(FAILING, seed=0)
    result = await session.step(Type("crash"))
    assert result.terminal is TerminalState.ENV_ERROR
    assert result.evaluation.status is EvaluationStatus.ENVIRONMENT_ERROR


async def test_a_defect_is_raised_and_the_desktop_thrown_away(session, desktops):
    await session.reset(FAILING, seed=0)
    with pytest.raises(KeyError):
        await session.step(Type("defect"))
    with pytest.raises(EpisodeStateError):
        await session.step(Type("x"))
    await session.reset(FAILING, seed=0)
    assert len(desktops.made) == 2


async def test_a_session_of_its_own_closes_its_slot():
    async with Session() as session:
        result = await session.reset("fake/click-button", seed=1)
        assert not math.isnan(result.timings["total"])
    with pytest.raises(EpisodeStateError):
        await session.step(Done())
