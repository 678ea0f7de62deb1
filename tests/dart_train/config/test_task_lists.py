"""Tasks that a file lists, as OSWorld's `test_all.json` does: the 203 of the paper, or anybody's own choice."""

from __future__ import annotations

import json

import pytest

from dart_gym.core.errors import UnknownTaskError
from dart_train.config.run_config import ConfigError, RunConfig, parse_config
from dart_train.config.task_names import check_tasks, expand_tasks


def config(*tasks: object) -> RunConfig:
    return parse_config({"name": "some", "rollout": {"tasks": list(tasks)}})


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """A folder as OSWorld's, with two tasks."""
    for app, name in (("chrome", "one"), ("gimp", "two")):
        (tmp_path / "examples" / app).mkdir(parents=True)
        task = {"id": name, "instruction": "x", "config": [], "evaluator": {"func": "infeasible"}}
        (tmp_path / "examples" / app / f"{name}.json").write_text(json.dumps(task))
    monkeypatch.setenv("DART_GYM_OSWORLD", str(tmp_path / "examples"))
    from dart_gym.tasks.catalog import registry

    registry.forget_suites()
    yield tmp_path
    registry.forget_suites()


def test_a_list_stands_for_its_tasks(examples):
    path = examples / "chosen.json"
    path.write_text(json.dumps({"gimp": ["two"], "chrome": []}))
    found = expand_tasks(config({"id": str(path), "weight": 2.0, "max_steps": 7}, "fake/click-button"))
    assert [(entry.id, entry.weight, entry.max_steps) for entry in found.rollout.tasks] == [
        ("fake/click-button", 1.0, None), ("osworld/two", 2.0, 7),
    ]  # fmt: skip
    check_tasks(config(str(path)))


def test_a_name_that_is_no_task_is_said(examples):
    path = examples / "chosen.json"
    path.write_text(json.dumps({"gimp": ["three"]}))
    with pytest.raises(UnknownTaskError, match="unknown task 'osworld/three'"):
        check_tasks(config(str(path)))
    path.write_text(json.dumps({"gimp": [3]}))
    with pytest.raises(ConfigError, match="is no list of tasks: by application it must have names"):
        check_tasks(config(str(path)))


def test_a_task_of_ones_own_is_no_list(examples):
    path = examples / "examples" / "gimp" / "two.json"
    assert expand_tasks(config(str(path))).rollout.tasks[0].id == str(path)
    with pytest.raises(UnknownTaskError, match="cannot read task file"):
        check_tasks(config(str(examples / "missing.json")))
