"""The bundled suite debian-basics on real desktops: the oracle scores 1, doing nothing 0."""

import json

import pytest

from dart_gym.core.actions import Press, Type
from dart_gym.core.outcomes import EvaluationStatus
from dart_gym.tasks.catalog.registry import get_task, task_ids
from dart_gym.tasks.evaluation.getters import GETTERS
from dart_gym.tasks.evaluation.metrics import METRICS
from dart_gym.tasks.osworld.osworld_scenario import instantiate
from tests.helpers.parameters import slow_but

TASKS = task_ids("debian-basics")
# One task of each application; every other of them in the normal run.
FIRST = [
    "debian-basics/mousepad-replace-word",
    "debian-basics/calculator-to-note",
    "debian-basics/calculator-root",
    "debian-basics/files-rename",
    "debian-basics/terminal-find-word",
    "debian-basics/dialog-order",
    "debian-basics/web-register",
    "debian-basics/web-to-note",
    "debian-basics/calc-total",
    "debian-basics/writer-bold",
    "debian-basics/impress-move-slide",
    "debian-basics/gimp-flip",
    "debian-basics/image-viewer-rotate",
    "debian-basics/vlc-playlist",
]


def play(stage, task_id, seed):
    """Doing nothing, then the oracle, on one desktop: returns both evaluations and the number of actions."""
    task = get_task(task_id)
    stage.reset(task, seed)
    idle = stage.evaluate()
    steps = stage.follow_oracle(task.max_steps + 1)
    return idle, stage.evaluate(), steps


def check(stage, task_id, seed):
    idle, solved, steps = play(stage, task_id, seed)
    assert (idle.status, idle.score) == (EvaluationStatus.OK, 0.0), idle
    assert (solved.status, solved.score) == (EvaluationStatus.OK, 1.0), solved
    assert 2 <= steps <= get_task(task_id).max_steps


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.parametrize("task_id", slow_but(FIRST[::2], FIRST))
def test_the_oracle_scores_1_and_doing_nothing_0(stage, task_id):
    check(stage, task_id, 0)


@pytest.mark.desktop
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("task_id", TASKS)
def test_the_oracle_scores_1_and_doing_nothing_0_on_five_seeds(stage, task_id, seed):
    check(stage, task_id, seed)


@pytest.mark.desktop
@pytest.mark.parametrize(
    ("task_id", "actions"),
    [
        ("debian-basics/mousepad-add-line", [Press(("ctrl", "end")), Type("something else")]),
        ("debian-basics/calc-delete-row", [Press(("shift", "space")), Press(("delete",))]),  # emptied, not deleted
    ],
)
def test_what_is_nearly_right_scores_0(stage, task_id, actions):
    stage.reset(task_id, 0)
    for action in [*actions, Press(("ctrl", "s"))]:
        stage.step(action)
    evaluation = stage.evaluate()
    assert (evaluation.status, evaluation.score) == (EvaluationStatus.OK, 0.0), evaluation


def test_the_suite_is_large_and_its_applications_are_many():
    programs = {app.split("_")[0] for task_id in TASKS for app in get_task(task_id).raw["related_apps"]}
    assert len(TASKS) >= 40 and len(programs) >= 8
    assert sum(len(get_task(task_id).raw["related_apps"]) > 1 for task_id in TASKS) >= 2


@pytest.mark.parametrize("task_id", TASKS)
def test_seeds_choose_and_nothing_is_left_open(task_id):
    task = get_task(task_id)
    instances = [instantiate(task, seed) for seed in range(20)]
    names = [name for name, rule in task.raw["dart"]["parameters"].items() for name in spelled(name, rule)]
    assert names
    for instance in instances:
        text = json.dumps(instance)
        assert not [name for name in names if f"{{{name}}}" in text]
    assert len({json.dumps(instance) for instance in instances}) >= 3


def spelled(name, rule):
    """The placeholders of one parameter."""
    options = rule.get("choice")
    return [f"{name}.{key}" for key in options[0]] if options and isinstance(options[0], dict) else [name]


@pytest.mark.parametrize("task_id", TASKS)
def test_evaluators_need_no_environment_of_their_own(task_id):
    evaluator = get_task(task_id).evaluator
    assert evaluator["func"] in METRICS
    assert {evaluator["result"]["type"], evaluator["expected"]["type"]} <= GETTERS.keys()


def test_the_set_up_of_an_application_comes_before_that_of_its_tasks():
    config = get_task("debian-basics/web-to-note").config
    text = [json.dumps(step) for step in config]
    server = next(i for i, step in enumerate(text) if "/usr/bin/python3" in step)
    page = next(i for i, step in enumerate(text) if "meeting.html" in step)
    assert "gtk-3.0" in text[0] and server < page
