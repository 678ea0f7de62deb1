"""GTK dialogs on real desktops: the oracle reaches 1, doing nothing 0, equal seeds repeat."""

import asyncio

import numpy as np
import pytest

from dart_gym.core.actions import Wait
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.catalog.registry import get_task, make_scenario, task_from_dict, task_ids
from tests.helpers.parameters import slow_but

pytestmark = pytest.mark.desktop
TASKS = task_ids("dialogs")


@pytest.mark.parametrize("seed", slow_but([0], [0, 1]))
@pytest.mark.parametrize("task_id", TASKS)
def test_the_oracle_solves_the_task_within_the_step_limit(stage, task_id, seed):
    task = get_task(task_id)
    prepared, frame = stage.reset(task, seed)
    assert frame.shape == (240, 320, 3) and "{" not in prepared.instruction
    assert 2 <= stage.follow_oracle(task.max_steps) <= task.max_steps
    evaluation = stage.evaluate()
    assert (evaluation.status, evaluation.score) == (EvaluationStatus.OK, 1.0), evaluation


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 10))
@pytest.mark.parametrize("task_id", TASKS)
def test_the_oracle_solves_more_seeds(stage, task_id, seed):
    stage.reset(task_id, seed)
    stage.follow_oracle(10)
    assert stage.evaluate().score == 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("task_id", slow_but(TASKS[::3], TASKS))
def test_doing_nothing_scores_0_and_equal_seeds_look_equal(stage, task_id):
    first, frame = stage.reset(task_id, 5)
    assert not stage.step(Wait(0.0))
    assert stage.evaluate().score == 0.0
    assert stage.evaluate(TerminalState.FAIL).score == 0.0

    async def again():
        desktop = make_desktop(get_task(task_id).desktop)
        await desktop.start()
        try:
            prepared = await make_scenario("dialogs").prepare(desktop, get_task(task_id), 5)
            return prepared, await desktop.screenshot()
        finally:
            await desktop.stop()

    second, other = stage.run(again())
    assert first.instruction == second.instruction
    assert np.array_equal(frame, other)


async def test_windows_are_activated_and_closed_by_title():
    task = task_from_dict(
        {
            "id": "w",
            "instruction": "",
            "config": [
                {"type": "launch", "parameters": {"command": "zenity --info --title=One (1) --text=a", "shell": False}},
                {"type": "launch", "parameters": {"command": ["zenity", "--info", "--title=Two", "--text=b"]}},
                {"type": "activate_window", "parameters": {"window_name": "Two", "strict": True}},
                {"type": "close_window", "parameters": {"window_name": "Two"}},
            ],
            "evaluator": {
                "postconfig": [
                    {"type": "execute", "parameters": {"command": "pgrep -c zenity", "shell": "true", "stdout": "n"}}
                ],
                "func": "compare_text_file",
                "result": {"type": "cache_file", "path": "n"},
                "expected": {"type": "vm_file", "path": "/home/user/n", "dest": "m"},
            },
            "dart": {"desktop": {"width": 320, "height": 240}},
        }
    )
    desktop = make_desktop(task.desktop)
    await desktop.start()
    try:
        scenario = make_scenario("osworld")
        await asyncio.wait_for(scenario.prepare(desktop, task, 0), 30)
        await desktop.write_file("/home/user/n", b"1\n")
        assert (await scenario.evaluate(desktop, TerminalState.DONE, [])).score == 1.0
    finally:
        await desktop.stop()
