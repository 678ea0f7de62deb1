"""`dart-gym certify`: right tasks get a badge, wrong ones are quarantined by name, a run that was cut off goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_gym.certification.attempts import NO_ORACLE, Attempt, Unit, play_unit
from dart_gym.certification.certificate import fault_of, is_certified, judge, page_of, read_badge, report_of
from dart_gym.certification.certify_run import read_records, seeds
from dart_gym.commands.gym_cli import app
from dart_gym.core.errors import ConfigurationError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.tasks.catalog.registry import get_task, task_from_dict, task_ids
from tests.dart_gym.certification.faulty_suite import FAULTS, SUITE

ROOT = Path(__file__).parents[3]
BUNDLED = ("debian-basics", "dialogs", "drawn", "fake", "miniwob", "sites")
CLICK = get_task("fake/click-button")


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def unit(*attempts: Attempt, seed: int = 0, **fields) -> Unit:
    return Unit(CLICK.id, CLICK.hash, seed, list(attempts), **fields)


GOOD = (Attempt("nothing", 0.0), Attempt("random", 0.5), Attempt("oracle", 1.0, steps=2))


@pytest.mark.parametrize(
    ("attempt", "fault"),
    [
        (Attempt("nothing", 0.0), ""),
        (Attempt("nothing", 0.25), "nothing done scores 0.25"),
        (Attempt("random", 1.0), ""),
        (Attempt("random", None, "env_error: gone"), "random: env_error: gone"),
        (Attempt("oracle", 1.0), ""),
        (Attempt("oracle", 0.5), "its solution scores 0.5"),
        (Attempt("oracle", None, NO_ORACLE), ""),
        (Attempt("golden", 0.0), "its golden patch scores 0"),
    ],
)
def test_what_an_attempt_shows(attempt, fault):
    assert fault_of(attempt) == fault


def test_a_task_is_judged_by_all_of_its_units():
    assert judge([unit(*GOOD), unit(*GOOD, seed=1)]) | {"hash": ""} == {
        **{"hash": "", "status": "certified", "reasons": [], "seeds": [0, 1], "attempts": 6, "failed": 0, "flakes": 0},
        **{"setup_s": None, "longest_setup_s": None, "screen_share": 0.0, "chance": 0.5, "steps": 2, "golden": 0},
        "left": 0,
    }
    late = unit(*GOOD[:2], Attempt("oracle", 0.0), seed=7)
    assert judge([unit(*GOOD), late])["reasons"] == ["its solution scores 0 (seed 7)"]
    assert judge([unit(*GOOD), late])["flakes"] == 1 and judge([late])["flakes"] == 0  # always: no flake, a fault
    assert judge([unit(*GOOD, screen_share=0.0019)])["status"] == "certified"
    assert judge([unit(*GOOD, screen_share=0.021)])["reasons"] == [
        "first screens of one seed differ in 2.10% of their pixels"
    ]
    assert judge([unit(*GOOD, left=["process 7"])])["reasons"] == ["left behind: process 7 (seed 0)"]
    assert judge([unit(Attempt("nothing", 0.0), Attempt("oracle", None, NO_ORACLE))])["status"] == "unproven"


def test_seeds_are_held_out_and_trained_on_by_turns():
    assert seeds(5) == [0, 10_000, 1, 10_001, 2]


def test_wrong_tasks_are_quarantined_by_name_and_the_others_go_on(tmp_path):
    result = run("certify", SUITE, "--repeat", "3", "--parallel", "2", "--deadline", "1")
    assert result.exit_code == 1, result.output
    badge = read_badge(SUITE)
    found = {task.rpartition("/")[2]: entry for task, entry in badge["tasks"].items()}
    assert set(found) == set(FAULTS)
    statuses = {name: entry["status"] for name, entry in found.items()}
    assert statuses == dict.fromkeys(FAULTS, "quarantined") | {"right": "certified", "unsolved": "unproven"}
    reasons = {name: "; ".join(entry["reasons"]) for name, entry in found.items()}
    for name, words in {
        "free": "nothing done scores 1 (seed 0, 1, 10000)",
        "misses": "its solution scores 0",
        "hangs": "reset was not done within its deadline of 1 s",
        "raises": "ValueError: no such file: seed.db",
        "restless": "first screens of one seed differ",
        "flaky": "its solution scores 0 (seed 1)",
        "unscored": "metric fell over",
    }.items():
        assert words in reasons[name] and f"quarantined: {SUITE}/{name}: " in result.output
    assert found["hangs"]["attempts"] == 3  # one a seed: each would hang
    assert (badge["flakes"], found["flaky"]["flakes"], found["misses"]["flakes"]) == (1, 1, 0)
    assert run("tasks", "list", SUITE, "--certified").output.split() == [f"{SUITE}/right"]
    page = next((tmp_path / "certify").rglob("report.html"))
    assert "metric fell over" in page.read_text()
    apart = [path.name for path in sorted((page.parent / "screens").iterdir())]
    assert apart == [f"{SUITE}-restless-{seed}-{letter}.png" for seed in (0, 1, 10000) for letter in "ab"]


def test_some_tasks_can_be_certified_again_and_the_badge_keeps_the_others():
    assert run("certify", "fake", "--repeat", "2").exit_code == 0
    result = run("certify", "fake", "--repeat", "3", "--task", "fake/two-*", "--out", "other")
    assert result.exit_code == 0 and "2 certified; 0 flakes in 15 attempts" in result.output
    found = {task: entry["seeds"] for task, entry in read_badge("fake")["tasks"].items()}
    assert found == {"fake/click-button": [0, 10_000], "fake/two-steps": [0, 1, 10_000]}


def test_a_changed_task_is_certified_no_more():
    report = report_of("fake", [unit(*GOOD)], {}, "1")
    assert is_certified(report, CLICK)
    assert not is_certified(report, dataclasses.replace(CLICK, instruction="Other."))
    assert not is_certified(report, get_task("fake/two-steps"))


@pytest.mark.thorough
@pytest.mark.process
def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path):
    command = [sys.executable, "-m", "dart_gym.commands.gym_cli", "certify", "drawn", "--repeat", "4"]
    records = tmp_path / "certify" / "drawn" / "attempts.jsonl"
    first = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not records.is_file() or records.read_text().count("\n") < 5:
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    whole = records.read_text().splitlines()
    records.write_text("\n".join(whole)[:-20])  # the last line was cut off as well
    tasks = [get_task(name) for name in task_ids("drawn")]
    known = len(read_records(records, tasks))
    assert known >= 4
    result = run("certify", "drawn", "--repeat", "4")
    assert result.exit_code == 0, result.output
    units = read_records(records, tasks)
    assert len(units) == 4 * len(tasks)
    assert len(records.read_text().splitlines()) == len(units) + (known < len(whole))
    assert run("certify", "drawn", "--repeat", "4").stderr == ""  # nothing is left to play
    assert set(read_badge("drawn")["tasks"]) == set(task_ids("drawn"))


@pytest.mark.thorough
@pytest.mark.desktop
async def test_a_golden_patch_is_an_attempt_and_what_is_left_behind_is_found(monkeypatch, tmp_path):
    raw = {
        "id": "make-note",
        "instruction": "Make the file note.txt.",
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": "cat note.txt", "shell": True},
            "expected": {"type": "rule", "rules": {"expected": "word\n"}},
        },
        "config": [{"type": "write_file", "parameters": {"path": "list.txt", "text": "word\n"}}],
        "dart": {
            "desktop": {"width": 320, "height": 240},
            "ready": {"still": 0.1},
            "golden": [{"type": "execute", "parameters": {"command": "cp list.txt note.txt", "shell": True}}],
        },
    }
    played = await play_unit(task_from_dict(raw), 0, 30.0, tmp_path)
    scores = {attempt.kind: attempt.score for attempt in played.attempts}
    assert scores == {"nothing": 0.0, "random": 0.0, "oracle": None, "golden": 1.0}, played
    assert played.left == [] and judge([played])["status"] == "unproven"

    async def leave(desktop):
        """Not to stop: what a fault of the keeper would come to."""

    stopped = []
    stop = type(make_kept()).stop
    monkeypatch.setattr(
        type(make_kept()), "stop", lambda desktop: leave(desktop) if not stopped.append(desktop) else None
    )
    played = await play_unit(task_from_dict(raw), 0, 30.0, tmp_path)
    monkeypatch.undo()
    assert any(left.startswith("directory ") for left in played.left)
    assert any(left.startswith("process ") for left in played.left)
    for desktop in stopped:
        await stop(desktop)


def make_kept():
    from dart_gym.desktops.keeper.kept_desktop import KeptDesktop

    return KeptDesktop(DesktopSpec(width=320, height=240))


def test_what_cannot_be_certified_is_one_line(tmp_path):
    for arguments, words in [
        (["certify", "nosuch"], "unknown suite"),
        (["certify", str(tmp_path)], "no task files"),
        (["certify", "fake", "--task", "fake/click-*box"], "no task of fake is like fake/click-*box"),
        (["tasks", "list", SUITE, "--certified"], f"next step: dart-gym certify {SUITE}"),
    ]:
        result = run(*arguments)
        assert result.exit_code == 1 and words in result.stderr and len(result.stderr.splitlines()) == 1, result
    (tmp_path / "data/dart-gym/certificates").mkdir(parents=True)
    (tmp_path / "data/dart-gym/certificates/fake.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="is no badge"):
        read_badge("fake")


def test_the_page_holds_texts_as_texts():
    report = report_of("<script>", [unit(*GOOD)], {"x/</script>": ["<b>"]}, "1")
    page = page_of(report)
    data = page.partition('type="application/json">')[2].partition("</script>")[0]
    assert json.loads(data) == report


@pytest.mark.parametrize("suite", BUNDLED)
def test_bundled_suites_carry_a_badge_for_each_of_their_tasks_as_they_are(suite):
    badge = read_badge(suite)
    tasks = [get_task(name) for name in task_ids(suite)]
    assert [task.id for task in tasks if not is_certified(badge, task)] == [], "next step: dart-gym certify, see docs"
    assert badge["left"] == 0 and badge["repeats"] >= 1


OSWORLDS_OWN_PAUSES = {"osworld/13584542-872b-42d8-b299-866967b5c3ef"}
"""Its postconfig types half a second after it has opened a terminal: too soon on a busy machine."""


def test_a_bundled_badge_certifies_osworlds_tasks_that_need_nothing():
    badge = read_badge("osworld")
    certified = {name for name, entry in badge["tasks"].items() if entry["status"] == "certified"}
    folder = ROOT / "tests" / "data" / "osworld" / "examples"
    tasks = [task_from_dict(json.loads(path.read_text())) for path in folder.glob("*/*.json")]
    assert len([task for task in tasks if is_certified(badge, task)]) == len(certified) >= 31
    assert {name for name, entry in badge["tasks"].items() if entry["status"] == "quarantined"} <= OSWORLDS_OWN_PAUSES
