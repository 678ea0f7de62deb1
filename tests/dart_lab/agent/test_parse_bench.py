"""The command `dart-agent bench parse`: its numbers, its file, and what it says without the published package."""

import json
import sys

import pytest
from typer.testing import CliRunner

from dart_agent.commands.agent_cli import app
from dart_gym.core.errors import MissingDependencyError
from dart_lab.agent.parse_bench import measure


def test_numbers_and_file(tmp_path):
    path = tmp_path / "parse.json"
    done = CliRunner().invoke(app, ["bench", "parse", "--count", "100", "--rounds", "1", "--json", str(path)])
    assert done.exit_code == 0, done.output
    assert "parses_per_s" in done.output
    report = json.loads(path.read_text())
    assert report["bench"] == "parse"
    keys = report["keys"]
    assert keys["vs_ui_tars"] == pytest.approx(keys["parses_per_s"] / keys["ui_tars_parses_per_s"], rel=0.01)
    assert {"anthropic_parses_per_s", "qwen_parses_per_s", "pyautogui_parses_per_s"} <= keys.keys()


def test_reading_is_not_slow():
    """A tenth of the aim, which the benchmark itself is held against on a quiet machine."""
    assert measure(300, 3, published=False).keys["parses_per_s"] > 2_000


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ui_tars.action_parser", None)
    with pytest.raises(MissingDependencyError, match="pip install ui-tars==0.5.1"):
        measure(10, 1)
    assert "vs_ui_tars" not in measure(10, 1, published=False).keys
