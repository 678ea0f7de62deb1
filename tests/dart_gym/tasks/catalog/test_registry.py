"""Suites and tasks: found by name, read from OSWorld's JSON, refused with a reason."""

import json
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.core.errors import PluginError, TaskError, UnknownTaskError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.tasks.catalog.registry import get_task, make_scenario, suites, task_from_dict, task_ids
from dart_gym.tasks.catalog.scenario import Scenario
from dart_gym.tasks.suites.miniwob import miniwob_pages
from tests.helpers.packages import install

MINIMAL = {"id": "x", "instruction": "do"}


def test_bundled_suites_hold_enough_tasks():
    assert {"dialogs", "fake", "miniwob", "osworld"} <= set(suites())
    assert len(task_ids("miniwob")) >= 12
    assert len(task_ids("dialogs")) >= 6
    assert len(set(task_ids())) == len(task_ids())


def test_every_listed_task_can_be_had_and_has_a_scenario():
    for task_id in task_ids("miniwob") + task_ids("dialogs"):
        task = get_task(task_id)
        assert (task.id, task.suite) == (task_id, task_id.split("/")[0])
        assert task.max_steps >= 1 and len(task.hash) == 16
    for suite in ("miniwob", "dialogs", "osworld"):
        assert isinstance(make_scenario(suite).prepare.__name__, str)
        assert make_scenario(suite) is not make_scenario(suite)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("miniwob/click-tset", "miniwob/click-test"),
        ("miniwo/click-tab", "miniwob/click-tab"),
        ("click-tab", "click-tab"),
    ],
)
def test_an_unknown_task_is_answered_with_near_names(wrong, meant):
    with pytest.raises(UnknownTaskError, match=meant):
        get_task(wrong)


def test_an_unknown_suite_is_answered_with_a_near_name():
    with pytest.raises(UnknownTaskError, match="miniwob"):
        task_ids("miniwop")


def test_bundled_json_survives_the_round_trip():
    folder = resources.files("dart_gym.tasks.suites.dialogs")
    for file in folder.iterdir():
        if file.name.endswith(".json") and file.name != "_setup.json":
            raw = json.loads(file.read_text(encoding="utf-8"))
            assert task_from_dict(raw).raw == raw
            assert file.name == f"{raw['id']}.json"


def test_unknown_keys_are_kept_and_optional_ones_default():
    raw = {**MINIMAL, "config": None, "hint": "h", "evaluator": None}
    task = task_from_dict(raw)
    assert task.raw is raw
    assert (task.id, task.config, task.evaluator) == ("osworld/x", [], {})


def test_osworlds_own_tasks_get_the_machine_that_they_expect():
    assert task_from_dict(MINIMAL).desktop == DesktopSpec(width=1920, height=1080, profile="osworld")
    assert task_from_dict({**MINIMAL, "dart": {}}).desktop == DesktopSpec(profile="bare")


@pytest.mark.parametrize(
    "raw",
    [
        [],
        {},
        {"id": "", "instruction": "do"},
        {"id": "x"},
        {**MINIMAL, "config": {"type": "launch"}},
        {**MINIMAL, "config": ["launch"]},
        {**MINIMAL, "evaluator": ["f"]},
        {**MINIMAL, "evaluator": {"postconfig": "launch"}},
        {**MINIMAL, "evaluator": {"postconfig": [5]}},
        {**MINIMAL, "config": [{"type": "launch", "parameters": ["x"]}]},
        {**MINIMAL, "config": [{"type": "download", "parameters": {"files": "x"}}]},
        {**MINIMAL, "evaluator": {"postconfig": [{"type": "download", "parameters": {"files": ["x"]}}]}},
        {**MINIMAL, "dart": {"max_steps": 0}},
        {**MINIMAL, "dart": {"max_steps": True}},
        {**MINIMAL, "dart": {"desktop": {"width": -1}}},
        {**MINIMAL, "dart": {"desktop": {"width": True}}},
        {**MINIMAL, "dart": {"desktop": {"kind": 3}}},
        {**MINIMAL, "dart": {"desktop": {"kind": "os:system"}}},
    ],
)
def test_malformed_json_is_refused(raw):
    with pytest.raises(TaskError):
        task_from_dict(raw)


@pytest.mark.parametrize("key", ["sandbox", "env", "reusable", "memory"])
def test_json_from_outside_cannot_choose_its_isolation(key):
    with pytest.raises(TaskError, match=r"dart\.desktop may hold"):
        task_from_dict({**MINIMAL, "dart": {"desktop": {key: "none"}}})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_is_a_task_or_a_task_error(value):
    for raw in (value, {**MINIMAL, "config": value}, {**MINIMAL, "evaluator": value}, {**MINIMAL, "dart": value}):
        try:
            task_from_dict(raw)
        except TaskError:
            pass


def test_a_task_file_is_read_and_a_bad_one_named(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(MINIMAL))
    assert get_task(str(path)) == get_task(path) == task_from_dict(MINIMAL)
    path.write_text("{")
    with pytest.raises(TaskError, match="is not JSON"):
        get_task(path)
    with pytest.raises(UnknownTaskError, match="cannot read"):
        get_task(tmp_path / "missing.json")


def test_a_suite_of_ones_own_is_loaded_once_and_only_when_asked_for():
    own = f"{__name__}:Own"
    assert Own.loads == 0
    assert get_task(f"{own}/x").instruction == "do"
    assert task_ids(own) == [f"{own}/deep/y", f"{own}/x"]
    assert get_task(f"{own}/x").suite == own
    assert isinstance(make_scenario(own), _NoScenario)
    assert Own.loads == 1
    with pytest.raises(UnknownTaskError, match=f"did you mean '{own}/deep/y'"):
        get_task(f"{own}/deep/z")
    with pytest.raises(TaskError):
        task_ids("a/b")


def test_the_suite_of_a_package_has_the_name_of_its_entry_point(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "my-birds", {"dart_gui.suites": {"test-birds": f"{__name__}:Own"}})
    assert "test-birds" in suites()
    assert get_task("test-birds/x").suite == "test-birds"
    assert set(task_ids("test-birds")) <= set(task_ids())


@pytest.mark.parametrize(
    ("value", "says"),
    [("no_birds:Birds", "No module named 'no_birds'"), ("json:JSONDecoder", "lacks load_tasks and make_scenario")],
)
def test_a_bad_suite_is_explained_and_does_not_hide_the_others(tmp_path, monkeypatch, value, says):
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "bad-birds", {"dart_gui.suites": {"bad-birds": value}})
    with pytest.raises(PluginError, match=f"the suite 'bad-birds' of the package 'bad-birds' .*{says}"):
        get_task("bad-birds/x")
    with pytest.raises(UnknownTaskError, match="miniwob/click-test"):
        get_task("miniwob/click-tset")
    with pytest.raises(PluginError, match=says):
        get_task(f"{value}/x")


class Own:
    """A suite that counts how often its tasks are loaded."""

    loads = 0

    def load_tasks(self):
        Own.loads += 1
        return [task_from_dict({**MINIMAL, "id": name}, suite="whatever") for name in ("x", "deep/y")]

    def make_scenario(self):
        return _NoScenario()


class _NoScenario:
    prepare = after_action = evaluate = oracle = close = None


def test_scenarios_follow_the_protocol():
    methods = [name for name in vars(Scenario) if not name.startswith("_")]
    for suite in ("miniwob", "dialogs"):
        assert all(callable(getattr(make_scenario(suite), name)) for name in methods)


def test_miniwob_pages_come_with_all_that_they_load():
    files = miniwob_pages.files_of("click-dialog")
    assert files[0] == "miniwob/click-dialog.html"
    assert {"core/core.js", "core/core.css", "core/jquery-ui/jquery-ui.min.js", "common/ui_utils.js"} <= set(files)
    assert any(path.startswith("core/jquery-ui/images/") for path in files)
    for task_id in task_ids("miniwob"):
        assert all(miniwob_pages.read(path) for path in miniwob_pages.files_of(task_id.split("/")[1]))
