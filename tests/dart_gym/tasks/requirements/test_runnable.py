"""Drawing and wildcards take what can run; naming anything else is an error that says why."""

from __future__ import annotations

import json
import logging

import gymnasium
import pytest

from dart_gym.core.errors import ConfigurationError, ProtocolError, UnrunnableTaskError
from dart_gym.envs.desktop_env import DesktopEnv, OSWorldEnv
from dart_gym.envs.vector_env import OSWorldVectorEnv
from dart_gym.tasks.catalog import registry
from dart_gym.tasks.requirements import needs, place, runnable
from dart_gym.tasks.requirements.place import Lacking, Place, lacking_here
from dart_gym.tasks.requirements.runnable import check_runnable, named_tasks, select
from dart_gym.tasks.setup.download_cache import DownloadCache, mirror_candidates, osworld_cache_name
from dart_train.config.run_config import RunConfig
from dart_train.config.task_names import check_tasks, expand
from dart_train.preflight.task_check import task_problems

URL = "https://huggingface.co/datasets/x/resolve/main/a.txt"
DOWNLOAD = {"type": "download", "parameters": {"files": [{"url": URL, "path": "/home/user/a.txt"}]}}
COUNTING = {"type": "execute", "parameters": {"command": "x=$((1+1)); f() { ls; }; f", "shell": True}}
NEEDS = {  # name: part of a task, and the reason that keeps it from running here
    "plain": ({}, ""),
    "shell": (
        {"config": [COUNTING]},
        "",
    ),
    "absent": ({"config": [{"type": "launch", "parameters": {"command": ["absent-program"]}}]}, "absent-program"),
    "metric": ({"evaluator": {"func": "no_such_metric"}}, "no_such_metric"),
    "site": ({"config": [{"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://a.b/"]}}]}, "a.b"),
    "file": ({"config": [DOWNLOAD]}, "download cache"),
    "drive": ({"config": [{"type": "googledrive", "parameters": {}}]}, "account"),
}
RUNNABLE = ["osworld/plain", "osworld/shell"]


def make_config(**changes) -> RunConfig:
    return RunConfig.parse({"name": "r", "rollout": {"tasks": ["fake/click-button"]}, **changes})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Seven tasks of OSWorld, two of which can run, with an empty cache."""
    for name, (parts, _) in NEEDS.items():
        raw = {"id": name, "instruction": "", "evaluator": {"func": "infeasible"}, "related_apps": ["VS Code"], **parts}
        (tmp_path / "tasks").mkdir(exist_ok=True)
        (tmp_path / "tasks" / f"{name}.json").write_text(json.dumps(raw))
    monkeypatch.setenv("DART_GYM_OSWORLD", str(tmp_path / "tasks"))
    monkeypatch.setenv("DART_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DART_GYM_FETCH_HOSTS", raising=False)
    registry.forget_suites()
    runnable.say_once.cache_clear()
    yield tmp_path
    registry.forget_suites()


@pytest.mark.parametrize(
    "ids",
    [
        lambda: select("osworld", Place.of()).runnable,
        lambda: OSWorldEnv().choice.task_ids,
        lambda: DesktopEnv(suite="osworld").choice.task_ids,
        lambda: OSWorldVectorEnv(2).choice.task_ids,
        lambda: gymnasium.make("DartGym/OSWorld-v0").unwrapped.choice.task_ids,
        lambda: expand(["osworld/*"]),
        lambda: named_tasks(["osworld"]),
        lambda: named_tasks(["osworld/*"]),
    ],
)
def test_what_can_run_is_taken_and_the_rest_is_counted_and_named_once(folder, ids, caplog):
    with caplog.at_level(logging.WARNING):
        assert list(ids()) == RUNNABLE
        ids()
    (record,) = [record for record in caplog.records if record.name == runnable.__name__]
    assert "5 of 7" in record.getMessage()
    for name, (_, reason) in NEEDS.items():
        assert not reason or (f"osworld/{name}" in record.getMessage() and reason in record.getMessage())


def test_a_list_of_tasks_is_treated_like_a_suite(folder):
    (folder / "test_all.json").write_text(json.dumps({"os": list(NEEDS)}))
    assert expand([str(folder / "test_all.json")]) == RUNNABLE


@pytest.mark.parametrize(("name", "reason"), [(name, reason) for name, (_, reason) in NEEDS.items() if reason])
def test_naming_a_task_that_cannot_run_says_why(folder, name, reason):
    task, file = f"osworld/{name}", str(folder / "tasks" / f"{name}.json")
    raw = json.loads((folder / "tasks" / f"{name}.json").read_text())
    env, envs = DesktopEnv("osworld/plain"), OSWorldVectorEnv(1, "osworld/plain")
    for use in (
        lambda: DesktopEnv(task),
        lambda: DesktopEnv(file),
        lambda: DesktopEnv(tasks=["osworld/plain", task]),
        lambda: OSWorldVectorEnv(2, task),
        lambda: env.reset(options={"task_id": task}),
        lambda: env.reset(options={"task": raw}),
        lambda: env.reset(options={"task": file}),
        lambda: envs.reset(options={"task_ids": [task]}),
        lambda: envs.async_reset(tasks=[raw]),
        lambda: named_tasks([task]),
        lambda: named_tasks([file]),
        lambda: check_tasks(make_config(rollout={"tasks": [task]})),
    ):
        with pytest.raises(UnrunnableTaskError, match=reason):
            use()


def test_a_list_of_tasks_none_of_which_can_run_is_one_error_that_gives_each_its_reason(folder):
    reasons = {f"osworld/{name}": reason for name, (_, reason) in NEEDS.items() if reason}
    for use in (
        lambda: DesktopEnv(tasks=[*reasons]),
        lambda: OSWorldVectorEnv(2, tasks=[*reasons]),
        lambda: named_tasks([*reasons]),
        lambda: named_tasks(["osworld/plain", *reasons]),
        lambda: check_tasks(make_config(rollout={"tasks": [*reasons]})),
        lambda: check_tasks(make_config(demonstrations={"tasks": [*reasons]})),
    ):
        with pytest.raises(UnrunnableTaskError, match=f"^{len(reasons)} of the named tasks cannot run here") as caught:
            use()
        lines = str(caught.value).splitlines()
        for name, reason in reasons.items():
            assert [line for line in lines if name in line and reason in line], name


def test_of_the_nodes_of_a_run_only_what_is_sure_is_an_error_before_it_starts(folder):
    (folder / "test_all.json").write_text(json.dumps({"os": ["absent", "file"]}))
    for name in ("osworld/absent", "osworld/file", "osworld/*", str(folder / "test_all.json")):
        assert task_problems(make_config(rollout={"tasks": [name]}), here=False) == []
    for name in ("osworld/metric", "osworld/site"):
        assert "cannot run" in task_problems(make_config(rollout={"tasks": [name]}), here=False)[0]
    assert "absent-program" in task_problems(make_config(rollout={"tasks": ["osworld/absent"]}))[0]


def test_a_suite_in_which_nothing_can_run_is_an_error(folder):
    for name in RUNNABLE:
        (folder / "tasks" / f"{name.partition('/')[2]}.json").unlink()
    for use in (
        lambda: gymnasium.make("DartGym/OSWorld-v0"),
        lambda: DesktopEnv(suite="osworld"),
        lambda: DesktopEnv("fake/two-steps").reset(options={"suite": "osworld"}),
        lambda: expand(["osworld/*"]),
        lambda: check_tasks(make_config(rollout={"tasks": ["osworld/*"]})),
        lambda: named_tasks(["osworld"]),
    ):
        with pytest.raises(UnrunnableTaskError, match="no task of .*osworld.* can run"):
            use()


def test_files_that_are_cached_or_may_be_fetched_keep_no_task_away(folder, monkeypatch):
    (folder / "a.txt").write_text("a")
    monkeypatch.setenv("DART_GYM_FETCH_HOSTS", "huggingface.co")
    assert "osworld/file" in select("osworld", Place.of()).runnable
    monkeypatch.setenv("DART_GYM_OFFLINE", "1")
    assert "osworld/file" not in select("osworld", Place.of()).runnable
    DownloadCache.default().add(URL, folder / "a.txt")
    assert "osworld/file" in select("osworld", Place.of()).runnable


def found(place: Place) -> set[str]:
    return {name.partition("/")[2] for name in select("osworld", place).runnable}


def test_of_a_machine_that_cannot_be_asked_only_what_is_sure_counts(folder):
    assert found(Place.of("ws://elsewhere:8765")) == {"plain", "shell", "absent", "file"}
    assert found(Place.of(None, "http://vm:5000")) == {"plain", "shell", "absent", "file", "site", "drive"}


def test_a_cluster_is_asked_once_for_all_that_its_tasks_need(folder):
    asked = []

    def ask(question: Lacking) -> Lacking:
        asked.append(question)
        return Lacking(files=frozenset({URL}))

    place = Place.of("ws://elsewhere:8765", ask=ask)
    for _ in range(2):
        assert found(place) == {"plain", "shell", "absent"}
    assert len(asked) == 1 and "absent-program" in asked[0].programs and asked[0].files == {URL}
    with pytest.raises(UnrunnableTaskError, match="cannot run on the cluster at ws://elsewhere:8765: not mirrored"):
        check_runnable([registry.get_task("osworld/file")], place)
    assert found(Place.of("ws://elsewhere", ask=lacking_here)) == {"plain", "shell"}


def test_programs_of_which_one_would_do_are_asked_for_until_it_is_known(folder):
    steps = [{"type": "execute", "parameters": {"command": "convert a b || magick a b", "shell": True}}]
    task = registry.task_from_dict({"id": "a", "instruction": "", "config": steps, "evaluator": {"func": "infeasible"}})
    for missing, reasons in ((frozenset({"convert"}), 0), (frozenset({"convert", "magick"}), 1)):
        place = Place.of("ws://elsewhere", ask=lambda question, missing=missing: Lacking(question.programs & missing))
        assert len(place.reasons_by_id([task])["osworld/a"]) == reasons


@pytest.mark.parametrize("values", [{"programs": "ls"}, {"files": [1]}, {"programs": ["x"] * 20_001}])
def test_a_malformed_question_is_refused(values):
    with pytest.raises(ProtocolError):
        Lacking.from_wire(values)


def test_files_that_desktops_do_not_see_are_not_told_of(tmp_path):
    program = tmp_path / "program"
    assert lacking_here(Lacking(frozenset({str(program), "/usr/../root/x", "/usr/bin/no-such"}))).programs == {
        "/usr/bin/no-such"
    }


def test_a_task_without_an_evaluator_may_be_named():
    check_runnable([registry.task_from_dict({"id": "a", "instruction": "look"})], Place.of())


def test_unused_related_applications_keep_no_task_away():
    def reasons(**parts) -> list[str]:
        raw = {"id": "a", "instruction": "", "evaluator": {"func": "infeasible"}, **parts}
        return Place(set(), lambda program: program != "code").reasons(registry.task_from_dict(raw))

    assert reasons(related_apps=["VS Code"]) == reasons(related_apps=["vscode", "os"]) == []
    assert reasons(related_apps=["vscode"], instruction="In VS Code, open the folder.")
    assert reasons(config=[{"type": "launch", "parameters": {"command": ["code", "-g", "/a"]}}])
    assert reasons(evaluator={"func": "exact_match", "result": {"type": "vscode_config"}})


def test_the_bundled_suites_are_whole_where_everything_is_installed():
    place = Place(set(), lambda program: True)
    for suite in ("debian-basics", "dialogs", "sites", "fake", "drawn"):
        assert not select(suite, place).skipped


def test_the_error_is_one_of_a_setting():
    assert not issubclass(UnrunnableTaskError, ConfigurationError) and UnrunnableTaskError.hopeless


@pytest.mark.parametrize(
    ("url", "site"),
    [
        ("about:blank", []),
        ("data:text/html,x", []),
        ("chrome://settings", []),
        ("localhost:8080/x", []),
        ("example.org:8080/x", ["example.org"]),
        ("example.org", ["example.org"]),
        ("http://[bad", ["http://[bad"]),
        (5, ["5"]),
    ],
)
def test_what_a_page_that_is_opened_needs_of_the_web(url, site):
    step = {"type": "chrome_open_tabs", "parameters": {"urls_to_open": [url]}}
    raw = {"id": "x", "instruction": "", "config": [step], "evaluator": {"func": "infeasible"}}
    assert needs.sites(registry.task_from_dict(raw)) == site


def test_an_address_that_is_none_is_not_mirrored_and_breaks_nothing(tmp_path):
    files = [
        {"url": url, "path": "/home/user/a"} for url in ("http://[bad", "", "about:x", None, "https://h.co:99999/")
    ]
    step = {"type": "download", "parameters": {"files": files}}
    task = registry.task_from_dict(
        {"id": "x", "instruction": "", "config": [step], "evaluator": {"func": "infeasible"}}
    )
    for cache in (DownloadCache(tmp_path), place.Fetchable(DownloadCache(tmp_path))):
        assert "5 files of" in Place(cache, lambda program: True).reasons(task)[0]
    assert mirror_candidates("http://[bad", "a.txt") == [osworld_cache_name("http://[bad", "a.txt")]
