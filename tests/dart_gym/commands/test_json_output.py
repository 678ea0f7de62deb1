"""Commands that print a table write the same rows as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from typer.testing import CliRunner

from dart_agent.commands.agent_cli import app as agent_app
from dart_agent.presets import presets
from dart_gym.commands.gym_cli import app as gym_app
from dart_gym.core.errors import ConfigurationError

EXAMPLES = Path(__file__).parents[2] / "data" / "osworld"


def rows(app: typer.Typer, path: Path, *words: str) -> list[dict]:
    result = CliRunner().invoke(app, [*words, "--json", str(path)])
    assert result.exit_code in (0, 1) and result.output, result.exception
    return json.loads(path.read_text())


def test_each_row_is_in_the_file(tmp_path):
    found = rows(gym_app, tmp_path / "doctor.json", "doctor")
    assert {row["name"] for row in found} > {"Xvfb", "torch"} and all(
        isinstance(row["requested"], bool) for row in found
    )
    tasks = rows(gym_app, tmp_path / "check.json", "tasks", "check", str(EXAMPLES))
    assert (
        len(tasks) == len(list(EXAMPLES.glob("examples/*/*.json"))) and {"id", "domain", "reasons"} == tasks[0].keys()
    )
    listed = rows(agent_app, tmp_path / "presets.json", "presets", "list")
    assert [row["name"] for row in listed] == [preset.name for preset in presets().values()]


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    result = CliRunner().invoke(agent_app, ["presets", "list", "--json", str(tmp_path / "none" / "x.json")])
    assert isinstance(result.exception, ConfigurationError)
    assert str(result.exception) == f"cannot write {tmp_path / 'none' / 'x.json'}: No such file or directory"
