"""OSWorld's task files: read unchanged, and each part of them supported or named in a reason to skip."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest
from osworld_tasks import BUNDLED, osworld_tasks
from rich.console import Console

from dart_gym.core.errors import TaskError, UnknownTaskError
from dart_gym.tasks.catalog.registry import read_suite, task_from_dict
from dart_gym.tasks.evaluation.evaluator_environment import VERSION, location
from dart_gym.tasks.requirements import needs, upstream_names
from dart_gym.tasks.requirements.needs import Download
from dart_gym.tasks.requirements.skip_reasons import kind_of, machine_has, skip_reasons
from dart_gym.tasks.requirements.suite_check import check_suite, print_check, unnamed_parts
from dart_gym.tasks.setup.chrome_steps import HISTORY_URL

OFFLINE = 32  # of the bundled ones need neither network nor files: as the list that came with them says


def _debian(program: str) -> bool:
    """Whether Debian has a program, with everything installed."""
    return program != "code"


class Everything:
    def __contains__(self, url: object) -> bool:
        return True


def test_every_task_is_read_unchanged_and_each_part_supported_or_skipped_with_a_reason(capsys):
    checked = check_suite(osworld_tasks(), set(), machine_has)
    assert len(checked) in (54, 319)
    assert unnamed_parts(checked) == []
    for item in checked:
        assert json.dumps(item.task.raw) == json.dumps(json.loads(item.path.read_text(encoding="utf-8")))
    with capsys.disabled():
        print()
        print_check(checked, Console(width=160), parts=True)


def test_what_needs_nothing_runs():
    runnable = [item.task for item in check_suite(BUNDLED, set(), _debian) if not item.reasons]
    assert len(runnable) == OFFLINE
    assert sum(needs.funcs_of(task) == ["infeasible"] for task in runnable) == 11


def test_with_the_hubs_files_only_the_web_an_account_and_another_system_keep_tasks_from_running():
    checked = check_suite(BUNDLED, Everything(), _debian)
    kinds = {kind_of(reason) for item in checked for reason in item.reasons}
    assert kinds == {"VS Code", "account", "live web", "metric left out", "other system"}
    assert sum(not item.reasons for item in checked) > OFFLINE


def _task(**fields):
    evaluator = {"func": "exact_match", "result": {"type": "vm_command_line"}}
    return task_from_dict({"id": "t", "instruction": "", "evaluator": evaluator, **fields})


def _step(kind, **parameters):
    return {"type": kind, "parameters": parameters}


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        ({}, []),
        ({"config": [_step("tidy_desktop")]}, ["unknown step: tidy_desktop"]),
        ({"config": [_step("login", platform="x")]}, ["account: step login needs an account at Google"]),
        ({"evaluator": {"func": ["exact_match", "no_such"]}}, ["unknown metric: no_such"]),
        ({"evaluator": {}}, ["unknown metric: the task has no evaluator"]),
        ({"evaluator": {"func": "exact_match", "result": {"type": "no_such"}}}, ["unknown getter: no_such"]),
        ({"config": [_step("launch", command=["code", "/x"])]}, ["VS Code: it is not in Debian"]),
        ({"config": [_step("launch", command=["absent"])]}, ["missing program: absent"]),
        ({"config": [_step("execute", command="cd /x && absent -y | bc", shell="true")]}, ["missing program: absent"]),
        ({"config": [_step("execute", command=["./setup.sh"])]}, []),
        ({"related_apps": ["VLC"]}, []),
        ({"id": "5812b315-e7bd-4265-b51f-863c02174c28"},
         ["other system: its solution makes a user, and sudo gives a desktop's user no more rights"]),
        ({"proxy": True}, ["live web: the task asks for a proxy"]),
        ({"config": [_step("chrome_open_tabs", urls_to_open=["https://a.b/x", "chrome://x"])]}, ["live web: a.b"]),
        ({"config": [_step("chrome_open_tabs", urls_to_open=["http://localhost:8/x", "file:///a"])]}, []),
        ({"config": [_step("execute", command=["pip", "install", "x"])]}, ["live web: pip install x"]),
        ({"config": [_step("execute", command=["apt-get", "install", "-y", "vlc", "bc"])]}, []),
        ({"config": [_step("execute", command="echo p | sudo -S apt -y install sysstat=12 && sar", shell=True)]},
         ["missing program: sar"]),
        ({"config": [_step("command", command=["sh", "-c", "apt-get -qq install --yes gone bc; true"])]},
         ["live web: apt-get install gone"]),
        (
            {"config": [_step("download", files=[{"url": "https://h.co/a", "path": "/a"}])]},
            ["not mirrored: 1 files of h.co are not in the download cache"],
        ),
    ],
)  # fmt: skip
def test_reasons(fields, reasons):
    has = {"bc", "vlc", "pip", "google-chrome", "sudo", "echo", "apt", "apt-get"}
    assert skip_reasons(_task(**fields), set(), has.__contains__) == reasons


def test_all_downloads_are_found():
    getter = {"type": "cloud_file", "multi": True, "path": ["https://a/1", "https://a/2"], "dest": ["1", "2"]}
    task = _task(
        config=[_step("download", files=[{"url": "https://a/0", "path": "/0"}]), _step("update_browse_history")],
        evaluator={
            "func": ["a", "b"],
            "result": [{"type": "vm_file"}, None],
            "expected": [getter, {"type": "cloud_file", "path": "https://a/3", "dest": "3"}],
            "postconfig": [_step("download", files=[{"url": "https://a/4", "path": "/4"}])],
        },
    )
    assert needs.downloads(task) == [
        Download("https://a/0", "/0", "config"),
        Download(HISTORY_URL, "history_empty.sqlite", "config"),
        Download("https://a/4", "/4", "postconfig"),
        *(Download(f"https://a/{number}", str(number), "evaluator") for number in (1, 2, 3)),
    ]


def test_a_directory_without_tasks_or_with_a_broken_one_is_named(tmp_path):
    with pytest.raises(UnknownTaskError, match="no task files"):
        read_suite(tmp_path)
    (tmp_path / "x.json").write_text('{"id": 3}')
    with pytest.raises(TaskError, match=r"x\.json: a task needs"):
        read_suite(tmp_path)


def _names_in(package: Path) -> set[str]:
    """What the `__init__.py` of a package imports or defines."""
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return defined | {alias.asname or alias.name for node in imports for alias in node.names}


def test_the_names_are_those_of_the_wheel():
    found = list(location().glob("lib/python3*/site-packages/desktop_env/evaluators"))
    if not found and not os.environ.get("CI"):
        pytest.skip("the evaluator is not installed: `make test` does, `make test-unit` does not")
    (evaluators,) = found
    assert upstream_names.VERSION == VERSION
    assert _names_in(evaluators / "metrics") == upstream_names.METRICS
    assert {name.removeprefix("get_") for name in _names_in(evaluators / "getters")} == upstream_names.GETTERS
