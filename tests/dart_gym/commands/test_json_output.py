"""Commands that print a table write the same rows as JSON: `--json FILE`, everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dart_agent.commands.agent_cli import app as agent_app
from dart_agent.presets import presets
from dart_gym.commands.gym_cli import app as gym_app
from dart_gym.core.errors import ConfigurationError
from tests.helpers.all_commands import every_command

EXAMPLES = Path(__file__).parents[2] / "data" / "osworld"
ONE_LINE = "says in a line or two what was done, or where it is"
MODULE = "is a process of a run, whose metrics are files of the run"
WITHOUT_TABLE = {
    "dart-gym certify": "writes report.json",
    "dart-gym evaluator install": ONE_LINE,
    "dart-gym init": ONE_LINE,
    "dart-gym mcp": "speaks a protocol of JSON",
    "dart-gym serve": "is a server, whose numbers are at /metrics and in `status`",
    "dart-gym token": ONE_LINE,
    "dart-agent export": ONE_LINE,
    "dart-agent import": ONE_LINE,
    "dart-agent init": ONE_LINE,
    "dart-agent run": "prints one episode; --out records it",
    "dart-agent view": "serves a page",
    "dart-agent ground train": "prints a line of progress; the model is what it makes",
    "dart-train ablate": "writes ablation.json",
    "dart-train controls": "writes report.json",
    "dart-train data export": ONE_LINE,
    "dart-train engines install": ONE_LINE,
    "dart-train init": ONE_LINE,
    "dart-train report": "writes report.json",
    "dart-train stop": ONE_LINE,
    **{
        f"dart-train {name}": MODULE
        for name in (
            "evaluate", "process",
        )
    },
}  # fmt: skip


def rows(app: typer.Typer, path: Path, *words: str) -> list[dict]:
    result = CliRunner().invoke(app, [*words, "--json", str(path)])
    assert result.exit_code in (0, 1) and result.output, result.exception
    return json.loads(path.read_text())


def test_every_command_takes_a_file_or_prints_no_table():
    for words, command in every_command().items():
        if command.callback.__module__.startswith("dart_gym_") or getattr(command, "ignore_unknown_options", False):
            continue  # of a package of its own
        option = next((one for one in command.params if "--json" in one.opts), None)
        assert (option is None) == (words in WITHOUT_TABLE), words
        if option is not None:
            assert option.metavar == "FILE" and not option.is_flag, words


def test_each_row_is_in_the_file(tmp_path):
    found = rows(gym_app, tmp_path / "doctor.json", "doctor")
    assert {row["name"] for row in found} > {"Xvfb", "torch"} and all(
        isinstance(row["requested"], bool) for row in found
    )
    tasks = rows(gym_app, tmp_path / "check.json", "tasks", "check", str(EXAMPLES))
    assert (
        len(tasks) == len(list(EXAMPLES.glob("examples/*/*.json"))) and {"id", "domain", "reasons"} == tasks[0].keys()
    )
    listed = rows(agent_app, tmp_path / "presets.json", "presets")
    assert [row["name"] for row in listed] == [preset.name for preset in presets().values()]


@pytest.mark.parametrize("words", [("tasks", "list", "fake"), ("tasks", "list", str(EXAMPLES))], ids=["suite", "files"])
def test_the_list_of_tasks(words, tmp_path):
    lines = CliRunner().invoke(gym_app, words).output.splitlines()
    found = rows(gym_app, tmp_path / "list.json", *words)
    assert [row["id"] for row in found] == [line.partition("\t")[0] for line in lines] != []


def test_the_coverage(tmp_path):
    found = rows(gym_app, tmp_path / "rows.json", "tasks", "check", str(EXAMPLES), "--solved")
    assert {row["kind"] for row in found} == {"metric", "getter", "postconfig step"}
    assert all(row["pairs"] or not row["tasks"] or isinstance(row["reason"], str) for row in found)


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    result = CliRunner().invoke(agent_app, ["presets", "--json", str(tmp_path / "none" / "x.json")])
    assert isinstance(result.exception, ConfigurationError)
    assert str(result.exception).startswith(f"cannot write {tmp_path / 'none' / 'x.json'}: there is no directory")


def test_where_the_file_is_to_be_is_looked_at_before_the_work(tmp_path):
    """An evaluation of hours must not find out at its end."""
    for place in (tmp_path / "nowhere" / "x.json", tmp_path):
        words = ["eval", "fake/two-steps", "--policy", "oracle", "--out", str(tmp_path / "out"), "--json", str(place)]
        done = CliRunner().invoke(agent_app, words)
        assert isinstance(done.exception, ConfigurationError) and "cannot write" in str(done.exception)
    assert not (tmp_path / "out").exists()
