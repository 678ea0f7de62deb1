"""The bundled suite sites on real desktops: the oracle scores 1, doing nothing 0."""

import json

import pytest

from dart_gym.core.outcomes import EvaluationStatus
from dart_gym.tasks.catalog.registry import get_task, task_ids
from dart_gym.tasks.evaluation.getters import GETTERS
from dart_gym.tasks.evaluation.metrics import METRICS
from dart_gym.tasks.osworld.osworld_scenario import instantiate
from tests.helpers.parameters import slow_but

TASKS = task_ids("sites")


def check(stage, task_id, seed):
    task = get_task(task_id)
    stage.reset(task, seed)
    idle = stage.evaluate()
    assert (idle.status, idle.score) == (EvaluationStatus.OK, 0.0), idle
    steps = stage.follow_oracle(task.max_steps + 1)
    solved = stage.evaluate()
    assert (solved.status, solved.score) == (EvaluationStatus.OK, 1.0), solved
    assert 2 <= steps <= task.max_steps


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.parametrize("task_id", slow_but(TASKS[::3], TASKS))
def test_the_oracle_scores_1_and_doing_nothing_0(stage, task_id):
    check(stage, task_id, 0)


@pytest.mark.desktop
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 10_000, 10_001])
@pytest.mark.parametrize("task_id", TASKS)
def test_the_oracle_scores_1_and_doing_nothing_0_on_more_seeds(stage, task_id, seed):
    check(stage, task_id, seed)


def test_there_are_twelve_tasks_and_several_need_an_application_besides_the_browser_or_two_sites():
    assert len(TASKS) == 12
    raws = [get_task(task_id).raw for task_id in TASKS]
    assert sum(len(raw["related_apps"]) > 1 or len(raw["dart"]["desktop"]["sites"]) > 1 for raw in raws) >= 4


@pytest.mark.parametrize("task_id", TASKS)
def test_seeds_choose_and_nothing_is_left_open(task_id):
    task = get_task(task_id)
    instances = [json.dumps(instantiate(task, seed)) for seed in range(20)]
    names = [name for name, rule in task.raw["dart"]["parameters"].items() if "integer" in rule]
    fields = [f"{name}." for name in task.raw["dart"]["parameters"]]
    for text in instances:
        assert not [name for name in names if f"{{{name}}}" in text]
        assert not [field for field in fields if f"{{{field}" in text]
    assert len(set(instances)) == 20


@pytest.mark.parametrize("task_id", TASKS)
def test_evaluators_need_no_environment_of_their_own(task_id):
    evaluator = get_task(task_id).evaluator
    checks = evaluator["func"] if isinstance(evaluator["func"], list) else [evaluator["func"]]
    results = evaluator["result"] if isinstance(evaluator["result"], list) else [evaluator["result"]]
    assert METRICS.keys() >= set(checks) and GETTERS.keys() >= {result["type"] for result in results}
