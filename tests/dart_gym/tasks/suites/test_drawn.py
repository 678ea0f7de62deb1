"""Drawn multi-turn tasks: what solves them, what does not, how long they are, and which instances are held out."""

import statistics
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.core.actions import Click, Done, Fail, Type
from dart_gym.core.errors import TaskError
from dart_gym.core.outcomes import TerminalState
from dart_gym.sessions.session import Session
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED, held_out
from dart_gym.tasks.catalog.registry import get_task, make_scenario, task_ids
from dart_gym.tasks.suites.drawn import instance_of
from dart_gym.tasks.suites.drawn.drawn_screens import next_step, solved
from dart_gym.tasks.suites.drawn.drawn_tasks import MAKERS

TASKS = task_ids("drawn")
SEEDS = [*range(12), *range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 12)]


async def follow(session, result):
    """The oracle to the end; the number of its actions."""
    actions = 0
    while result.terminal is None:
        result = await session.step(await session.oracle())
        actions += 1
    return result, actions


@pytest.mark.parametrize("task_id", TASKS)
async def test_the_oracle_solves_it_in_3_to_12_actions_within_the_limit(task_id):
    async with Session() as session:
        for seed in SEEDS:
            result, actions = await follow(session, await session.reset(task_id, seed=seed))
            assert (result.terminal, result.evaluation.score) == (TerminalState.DONE, 1.0), seed
            assert 3 <= actions <= 12


@pytest.mark.thorough
async def test_tasks_take_five_actions_in_the_mean():
    means = []
    async with Session() as session:
        for task_id in TASKS:
            lengths = [(await follow(session, await session.reset(task_id, seed=seed)))[1] for seed in range(12)]
            means.append(statistics.mean(lengths))
    assert len(TASKS) >= 10 and statistics.mean(means) >= 5


@pytest.mark.parametrize("task_id", TASKS)
async def test_what_does_not_solve_it_scores_0(task_id):
    async with Session() as session:
        for seed in SEEDS[::4]:
            for action in (Done(), Fail()):
                await session.reset(task_id, seed=seed)
                assert (await session.step(action)).evaluation.score == 0.0
            await session.reset(task_id, seed=seed)
            for _ in range(get_task(task_id).max_steps):
                result = await session.step(Click(166, 222))
            assert (result.terminal, result.evaluation.score) == (TerminalState.STEP_LIMIT, 0.0)


@pytest.mark.parametrize("task_id", TASKS)
async def test_a_right_entry_that_is_not_submitted_scores_0(task_id):
    async with Session() as session:
        result, actions = await follow(session, await session.reset(task_id, seed=3))
        result = await session.reset(task_id, seed=3)
        for _ in range(actions - 1):
            result = await session.step(await session.oracle())
        assert result.terminal is None
        assert (await session.step(Done())).evaluation.score == 0.0


@pytest.mark.parametrize("task_id", TASKS)
async def test_equal_seeds_are_equal_and_mistakes_can_be_mended(task_id):
    rng = Random(task_id)
    async with Session() as session:
        for seed in SEEDS[::3]:
            first = (await session.reset(task_id, seed=seed)).observation
            result = await session.reset(task_id, seed=seed, max_steps=200)
            assert first.instruction == result.observation.instruction
            assert np.array_equal(first.screenshot, result.observation.screenshot)
            for _ in range(12):
                action = rng.choice((Click(rng.randrange(168), rng.randrange(224)), Type("Zoe")))
                result = await session.step(action)
                if result.terminal is not None:
                    result = await session.reset(task_id, seed=seed, max_steps=200)
            result, _ = await follow(session, result)
            assert result.evaluation.score == 1.0


@given(
    name=st.sampled_from(sorted(MAKERS)), seed=st.integers(0, 20_000), chances=st.lists(st.floats(0, 1), max_size=25)
)
def test_from_every_state_there_is_a_way_to_the_goal(name, seed, chances):
    """An oracle that is lost has no lesson for the states that need one most."""
    instance = instance_of(name, seed)
    state = instance.begin()
    for chance in chances:
        widgets = [widget for widget in instance.pages[state.page] if widget.kind != "submit"]
        choice = int(chance * len(widgets))
        state = state.clicked(widgets[choice]) if choice < len(widgets) else state.typed("Zoe")
    for _ in range(100):
        if not state.ended:
            step = next_step(instance, state)
            state = state.typed(step) if isinstance(step, str) else state.clicked(step)
    assert state.ended and solved(instance, state)


@pytest.mark.parametrize("task_id", TASKS)
def test_held_out_seeds_show_what_training_never_shows(task_id):
    name = task_id.partition("/")[2]
    tested = {instance_of(name, seed).key for seed in range(50)}
    trained = {instance_of(name, FIRST_TRAINING_SEED + seed).key for seed in range(200)}
    assert not tested & trained and len(tested) > 4
    assert all(held_out(key) for key in tested)


async def test_other_desktops_and_programs_that_are_not_there_are_refused():
    with pytest.raises(TaskError, match="call reset first"):
        await make_scenario("drawn").oracle(None)
    with pytest.raises(TaskError, match="kind 'fake'"):
        await make_scenario("drawn").prepare(type("Other", (), {"spec": get_task("dialogs/enter-word").desktop})(),
                                             get_task(TASKS[0]), 0)  # fmt: skip
