"""`dart-gym tasks new`: what it writes passes its own test as it is, from templates and from recorded episodes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest
from dart_gym_task_generator.recorded_episode import from_episode, read_record
from dart_gym_task_generator.suite_package import from_template, templates, write_task
from typer.testing import CliRunner

from dart_gym.commands.gym_cli import app
from dart_gym.core.errors import ConfigurationError, TaskError
from dart_gym.tasks.catalog.registry import get_task
from tests.helpers.parameters import slow_but

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'integrations/task_generator'}"}
GYM = [sys.executable, "-m", "dart_gym.commands.gym_cli"]


def new(*arguments: str | Path):
    return CliRunner().invoke(app, ["tasks", "new", *map(str, arguments)], catch_exceptions=False)


def own_test_passes(folder: Path, tests: int) -> None:
    """The suite's own test, run by pytest in its directory, as its author would."""
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color", "no"]
    done = subprocess.run(run, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0 and f"{tests} passed" in done.stdout, done.stdout + done.stderr


def test_without_the_package_the_command_says_how_to_install_it():
    code = "import sys; sys.modules['dart_gym_task_generator'] = None; from dart_gym.commands.gym_cli import app; app()"
    run = [sys.executable, "-c", code, "tasks", "new", "birds", "--task", "x"]
    done = subprocess.run(run, env=ENVIRONMENT, capture_output=True, text=True, timeout=100)
    assert done.returncode and "pip install --no-deps ./integrations/task_generator" in done.stderr


# From templates
@pytest.mark.parametrize("template", templates())
def test_a_template_passes_the_check_and_keeps_its_parameter(tmp_path, template):
    made = new("birds", "--task", "robin", "--template", template, "--parameter", "thing", "--out", tmp_path / "birds")
    assert made.exit_code == 0 and len(made.stdout.split()) == 5, made.output
    raw = json.loads((tmp_path / "birds/birds_tasks/robin.json").read_text())
    text = json.dumps(raw)
    assert raw["id"] == "robin" and "{value}" not in text and "{thing}" in raw["instruction"]
    assert "{thing}" in json.dumps(raw["evaluator"]) and "{thing}" in json.dumps(raw["dart"]["oracle"])
    checked = CliRunner().invoke(app, ["tasks", "check", str(tmp_path / "birds")])
    assert checked.exit_code == 0 and "1 tasks" in checked.output, checked.output


def test_every_answer_is_an_option_and_a_second_task_is_one_file(tmp_path):
    folder = tmp_path / "night-birds"
    answers = ("--template", "dialog", "--parameter", "bird", "--choices", "owl, nightjar,owl")
    first = new("night-birds", *answers, "--instruction", "Enter {bird}.", "--out", folder)
    raw = json.loads((folder / "night_birds_tasks/first.json").read_text())
    assert first.exit_code == 0 and raw["instruction"] == "Enter {bird}."
    assert raw["dart"]["parameters"] == {"bird": {"choice": ["owl", "nightjar"]}}
    assert "class NightBirds" in (folder / "night_birds_tasks/__init__.py").read_text()
    second = new("night-birds", "--task", "second", "--template", "editor", "--out", folder)
    assert second.stdout.split() == [str(folder / "night_birds_tasks/second.json")]
    listed = subprocess.run(
        [*GYM, "tasks", "list", "night_birds_tasks:NightBirds"], cwd=folder, env=ENVIRONMENT, capture_output=True
    )
    names = ["night_birds_tasks:NightBirds/first", "night_birds_tasks:NightBirds/second"]
    assert listed.stdout.decode().split() == names


@pytest.mark.process
def test_the_wizard_asks_a_person_for_what_was_not_said(tmp_path):
    leader, follower = pty.openpty()
    asked = subprocess.Popen(
        [*GYM, "tasks", "new", "birds", "--template", "dialog"], cwd=tmp_path, env=ENVIRONMENT,
        stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.write(leader, b"robin\nbird\nWrite {bird}.\nrobin,wren\n")
    out, said = asked.communicate(timeout=60)
    os.close(leader)
    os.close(follower)
    assert asked.returncode == 0 and "Name of the task [first]" in said and "Values, with commas" in said, said
    assert "birds/birds_tasks/robin.json" in out
    raw = json.loads((tmp_path / "birds/birds_tasks/robin.json").read_text())
    assert raw["instruction"] == "Write {bird}." and raw["dart"]["parameters"]["bird"]["choice"] == ["robin", "wren"]


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ((), "SUITE is needed where nobody can be asked"),
        (("Birds",), "suite 'Birds' is no name"),
        (("../birds",), "is no name"),
        (("miniwob",), "built in"),
        (("birds", "--task", "a/b"), "task 'a/b' is no name"),
        (("birds", "--template", "dialogs"), "unknown template 'dialogs'; did you mean 'dialog'"),
        (("birds", "--parameter", "{x}"), "is no name: use small letters"),
        (("birds", "--instruction", "Write it."), r"does not say \{value\}"),
        (("birds", "--choices", "one"), "needs two values"),
        (("birds", "--from-episode", "nowhere"), "nowhere is no recorded episode"),
    ],
)
def test_a_wrong_answer_is_one_line_and_nothing_is_written(tmp_path, monkeypatch, answers, says):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["tasks", "new", *answers])
    assert found.exit_code != 0 and re.search(says, found.stderr), found.output
    assert found.stderr.startswith("dart-gym: ") and found.stderr.count("\n") == 1 and not list(tmp_path.iterdir())


def test_nothing_that_is_there_is_written_over(tmp_path):
    raw = from_template("dialog", "first")
    write_task(tmp_path / "birds", "birds", raw)
    with pytest.raises(TaskError, match=r"first.json is there already: choose another --task"):
        write_task(tmp_path / "birds", "birds", raw)
    with pytest.raises(TaskError, match="holds something else than the suite 'fish'"):
        write_task(tmp_path / "birds", "fish", raw)


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("template", slow_but(["dialog"], ["dialog", "editor", "page"]))
def test_a_new_suite_passes_its_own_test(tmp_path, template):
    write_task(tmp_path / "birds", "birds", from_template(template, "robin"))
    own_test_passes(tmp_path / "birds", 4)


# From recorded episodes
def record(folder: Path, task: str, actions: list[dict], **values) -> Path:
    """A record as `dart-agent` writes them, as far as it is read here."""
    folder.mkdir()
    beginning = {"format": 2, "task_id": task, "seed": 0, "instruction": "Do it", **values}
    maps = [beginning, {"actions": actions, "thought": ""}, {"terminal": "done", "ended_at": 1.0}]
    (folder / "trajectory.msgpack").write_bytes(b"".join(map(msgpack.packb, maps)))
    return folder


MOVE = {"kind": "move", "x": 5, "y": 5}


@pytest.mark.parametrize(
    ("task", "actions", "values", "says"),
    [
        ("dialogs/edit-note", [MOVE], {"format": 3}, "it has format 3, this version reads 2"),
        ("dialogs/edit-note", [{"kind": "done", "answer": ""}], {}, "nothing was done"),
        ("dialogs/edit-note", [MOVE, {"kind": "fail", "reason": ""}], {}, "ended with Fail"),
        ("dialogs/edit-note", ["move"], {}, "TypeError|indices|no recorded episode"),
        ("fake/two-steps", [MOVE], {}, "fake/two-steps is not in OSWorld's format"),
        ("dialogs/edit-note", [MOVE], {"task_hash": "0123456789abcdef"}, "has changed since"),
        ("dialogs/no-such", [MOVE], {}, "unknown task"),
        ("dialogs/edit-note", [{"kind": "move", "x": "left"}], {}, "no recorded episode"),
        ("dialogs/edit-note", [MOVE], {"seed": "x"}, "no recorded episode"),
        (5, [MOVE], {}, "no recorded episode"),
        ("this:Zen/x", [MOVE], {}, "the suite 'this' of this episode|'this:Zen' of this episode is not installed"),
        ("../../x.json", [MOVE], {}, "is not installed"),
    ],
)
async def test_a_record_that_is_no_task_is_one_line(tmp_path, task, actions, values, says):
    with pytest.raises((TaskError, ConfigurationError), match=says) as caught:
        await from_episode(record(tmp_path / "episode", task, actions, **values), "mine")
    assert "\n" not in str(caught.value)


def test_a_damaged_record_is_one_line(tmp_path):
    whole = record(tmp_path / "episode", "dialogs/edit-note", [MOVE])
    assert read_record(whole)[1] == [MOVE]
    for content in (b"", b"\xc1", b"\x01", (whole / "trajectory.msgpack").read_bytes()[:-12]):
        (whole / "trajectory.msgpack").write_bytes(content)
        with pytest.raises(TaskError, match="is no recorded episode"):
            read_record(whole)


@pytest.mark.desktop
async def test_an_episode_that_changed_nothing_makes_no_task(tmp_path):
    episode = record(tmp_path / "episode", "dialogs/edit-note", [MOVE], task_hash=get_task("dialogs/edit-note").hash)
    with pytest.raises(TaskError, match="nothing that an evaluator could see was changed"):
        await from_episode(episode, "mine")


@pytest.mark.slow
@pytest.mark.desktop
@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "task", ["dialogs/confirm-delete", *(pytest.param(f"debian-basics/{name}", marks=pytest.mark.slow) for name in
                                         ("mousepad-add-line", "files-rename", "vlc-open-file"))],
)  # fmt: skip
def test_a_recorded_episode_becomes_a_task_that_passes_its_own_test(tmp_path, task):
    """Recorded by the evaluation of the oracle; steps, files that changed and windows that came make the new task."""
    run = [sys.executable, "-m", "dart_agent.commands.agent_cli", "eval", task, "--policy", "oracle", "--n", "1"]
    subprocess.run([*run, "--out", tmp_path / "out"], env=ENVIRONMENT, check=True, capture_output=True, timeout=200)
    (episode,) = (tmp_path / "out/trajectories").iterdir()
    raw = asyncio.run(from_episode(episode, "mine", "Do what was shown."))
    assert raw["instruction"] == "Do what was shown." and len(raw["dart"]["oracle"]) >= 2
    write_task(tmp_path / "mine", "mine", raw)
    own_test_passes(tmp_path / "mine", 4)
