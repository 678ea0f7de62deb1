"""Solutions that are recorded beside tasks, what they cover, and how certify plays such pairs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_gym.commands.gym_cli import app
from dart_gym.core.errors import TaskError
from dart_gym.tasks.catalog.registry import read_suite, task_from_dict, task_from_file
from dart_gym.tasks.requirements.solved_coverage import BEGIN, END, coverage, parts_of, summary

NOTE = {
    "id": "make-note",
    "instruction": "Write word into the file note.txt.",
    "evaluator": {
        "postconfig": [{"type": "sleep", "parameters": {"seconds": 0.1}}],
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": "cat note.txt", "shell": True},
        "expected": {"type": "rule", "rules": {"expected": "word\n"}},
    },
}
OTHER = {
    "id": "other",
    "instruction": "",
    "evaluator": {
        "func": ["compare_csv", "compare_image_text"],
        "result": [{"type": "vm_file"}, {"type": "googledrive_file"}],
    },
}
SOLVED = [
    {"kind": "press", "keys": "ctrl+alt+t"},
    {"kind": "type", "text": "echo word > note.txt\n", "when": {"window": "Terminal", "idle": True}},
    {"kind": "wait", "seconds": 0, "when": {"command": "test -s note.txt"}},
]


def suite(folder: Path, **solutions: object) -> Path:
    """A directory of the two tasks, and of solutions by their tasks' names."""
    folder.mkdir()
    for raw in (NOTE, OTHER):
        (folder / f"{raw['id']}.json").write_text(json.dumps(raw))
    for name, content in solutions.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name.replace('_', '-')}.solution.json").write_text(text)
    return folder


def run(*arguments: str | Path):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_solution_is_no_task_and_no_part_of_its_hash(tmp_path):
    tasks = read_suite(suite(tmp_path / "mine", make_note={"how": "In a terminal.", "oracle": SOLVED}))
    assert [path.name for path in tasks] == ["make-note.json", "other.json"]
    note, other = tasks.values()
    assert (note.solution, other.solution) == (tuple(SOLVED), ())
    assert note.hash == task_from_dict(NOTE).hash
    assert task_from_file(tmp_path / "mine" / "make-note.json").solution == tuple(SOLVED)


@pytest.mark.parametrize(
    ("solutions", "words"),
    [
        ({"make_note": {"oracle": [{"kind": "clik", "x": 1, "y": 1}]}}, "unknown kind 'clik'; did you mean 'click'"),
        ({"make_note": {"oracle": [*SOLVED, "enter"]}}, "action 4 is of the unknown kind None"),
        ({"make_note": {"oracle": []}}, "'oracle', a list of actions"),
        ({"make_note": [1]}, "'oracle', a list of actions"),
        ({"make_note": "{"}, "is no recorded solution"),
        ({"gone": {"oracle": SOLVED}}, "solution of an unknown task: there is no gone.json"),
    ],
)
def test_a_solution_that_is_none_is_one_line(tmp_path, solutions, words):
    folder = suite(tmp_path / "mine", **solutions)
    with pytest.raises(TaskError, match=words):
        read_suite(folder)
    for command in (["certify", folder], ["tasks", "check", folder, "--solved"]):
        done = run(*command)
        assert done.exit_code and words in done.stderr and len(done.stderr.splitlines()) == 1, done.output


def test_parts_are_covered_by_tasks_with_a_solution_only():
    note, other = task_from_dict(NOTE), task_from_dict(OTHER)
    kinds = {("metric", "exact_match"), ("getter", "vm_command_line"), ("getter", "rule"), ("postconfig step", "sleep")}
    assert parts_of(note) == kinds
    rows = {row.name: row for row in coverage([note, other], {"note": note, "other": other})}
    assert all(not row.pairs for row in rows.values())
    rows = {
        row.name: row
        for row in coverage([note, other], {"note": dataclasses.replace(note, solution=tuple(SOLVED)), "other": other})
    }
    assert {name for name, row in rows.items() if row.pairs} == {name for _, name in kinds}
    assert rows["compare_csv"].shown == "not covered: no pair yet"
    assert rows["googledrive_file"].shown == "not covered: account: Google Drive"
    assert summary(rows.values()).startswith(
        "Covered: 1 of 2 metrics, 2 of 3 getters, 1 of 1 postconfig steps (67%); 2 "
    )


def test_the_command_writes_its_table_between_two_marks(tmp_path):
    folder = suite(tmp_path / "mine", make_note={"oracle": SOLVED})
    more = tmp_path / "more"
    more.mkdir()
    raw = {**OTHER, "id": "more", "dart": {"oracle": SOLVED}}
    (more / "more.json").write_text(json.dumps(raw))
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    done = run("tasks", "check", folder, "--solved", "--write", page)
    assert done.exit_code and "lacks the lines" in done.stderr and page.read_text() == "# Page\n"
    page.write_text(f"# Page\n\n{BEGIN}\nold\n{END}\n\nThe rest.\n")
    done = run("tasks", "check", folder, "--solved", "--pairs", more, "--write", page)
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "old" not in text and text.endswith(f"{END}\n\nThe rest.\n") and done.stdout.strip() in text
    assert "| metric | `exact_match` | 1 | osworld/make-not |" in text
    assert "| metric | `compare_csv` | 1 | osworld/more |" in text
    assert run("tasks", "check", folder, "--solved", "--pairs", "nosuch").exit_code


@pytest.mark.slow
@pytest.mark.desktop
def test_certify_plays_a_suite_of_ones_own_solved_and_unsolved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = suite(tmp_path / "mine", make_note={"oracle": SOLVED})
    (folder / "other.json").unlink()
    spoiled = "xdotool getmouselocation | grep -q 'x:5 y:5' || echo word"
    result = {"type": "vm_command_line", "command": spoiled, "shell": True}
    wrong = {**NOTE, "id": "wrong", "evaluator": {**NOTE["evaluator"], "result": result}, "dart": {}}
    (folder / "wrong.json").write_text(json.dumps(wrong))
    (folder / "wrong.solution.json").write_text('{"oracle": [{"kind": "move", "x": 5, "y": 5}]}')
    done = run("certify", folder, "--repeat", "1", "--out", tmp_path / "out")
    assert done.exit_code == 1, (done.output, done.exception)
    entries = json.loads((tmp_path / "mine.certified.json").read_text())["tasks"]
    assert {name: (entry["status"], entry["reasons"]) for name, entry in entries.items()} == {
        "osworld/make-note": ("certified", []),
        "osworld/wrong": ("quarantined", ["nothing done scores 1 (seed 0)", "its solution scores 0 (seed 0)"]),
    }
