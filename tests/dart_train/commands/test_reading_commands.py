"""Commands that read a run create nothing, and find the run that a configuration lies in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_train.commands.train_cli import app
from dart_train.config.run_config import ConfigError, load_config
from dart_train.launch import pipeline
from dart_train.launch.pipeline import open_run
from dart_train.processes.process_context import open_data
from dart_train.run.run_directory import RunDirectoryError

READING = [
    ["data", "check"],
    ["data", "check", "--clean"],
    ["report"],
    ["data", "export"],
    ["data", "import", "--pool"],
]


def _more(command: list[str]) -> list[str]:
    """Return the argument that follows the configuration."""
    return {"export": ["out.tar"], "import": ["runs/other"]}.get("".join(command[1:2]), [])


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_nothing_is_created_where_there_is_no_run(command, tmp_path: Path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("name: mine\nrollout: {tasks: [fake/button]}\n")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*command, "mine.yaml", *_more(command)])
    assert result.exit_code == 1 and isinstance(result.exception, RunDirectoryError)
    assert "no run" in str(result.exception) and "--runs-dir" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_a_run_without_data_is_not_called_whole(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("name: mine\nrollout: {tasks: [fake/button]}\n")
    run = open_run(load_config(tmp_path / "mine.yaml"), tmp_path / "runs")
    result = CliRunner().invoke(
        app, ["data", "check", str(tmp_path / "mine.yaml"), "--runs-dir", str(tmp_path / "runs")]
    )
    assert isinstance(result.exception, RunDirectoryError) and "no data" in str(result.exception)
    assert not run.database.exists()


@pytest.mark.parametrize("named", ["config.yaml", ""], ids=["file", "directory"])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_configuration_in_a_run_directory_is_of_that_run(renamed, named, tmp_path: Path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("name: mine\nrollout: {tasks: [fake/button]}\n")
    loaded = load_config(tmp_path / "mine.yaml")
    run = open_run(loaded, tmp_path / "kept")
    open_data(loaded, run).close()
    root = run.root.rename(tmp_path / "kept" / "moved") if renamed else run.root
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    result = CliRunner().invoke(app, ["data", "check", str(root / named), "--json", str(tmp_path / "x")])
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "x").read_text())["whole"]
    result = CliRunner().invoke(app, ["status", str(root / named), "--json", str(tmp_path / "x")])
    assert result.exit_code == 0, result.output
    assert "census" in json.loads((tmp_path / "x").read_text())
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("command", [*READING, ["run"], ["plan"]], ids=" ".join)
def test_a_directory_without_a_run_is_said_to_be_one(command, tmp_path: Path):
    result = CliRunner().invoke(app, [*command, str(tmp_path), *_more(command)])
    assert isinstance(result.exception, ConfigError) and "without a config.yaml" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_begin_and_go_on_mean_the_run_that_a_configuration_lies_in(tmp_path: Path, monkeypatch):
    """Also for commands that write, wherever they are called: no second run of the same name is begun."""
    (tmp_path / "mine.yaml").write_text("name: mine\nrollout: {tasks: [fake/click-button]}\n")
    run = open_run(load_config(tmp_path / "mine.yaml"), tmp_path / "kept")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    opened: list[Path] = []
    monkeypatch.setattr(pipeline, "execute", lambda config, runs_dir, **_: opened.append(runs_dir / config.name) or run)
    result = CliRunner().invoke(app, ["run", str(run.config), "--start-only"], catch_exceptions=False)
    assert result.exit_code == 0 and opened == [run.root]
    result = CliRunner().invoke(app, ["run", str(run.config), "--start-only", "--runs-dir", "others"])
    assert opened[1:] == [Path("others/mine")], "what is said counts"
    moved = run.root.rename(tmp_path / "kept" / "moved")
    result = CliRunner().invoke(app, ["run", str(moved / "config.yaml"), "--start-only"])
    assert "the run 'mine'" in str(result.exception) and len(opened) == 2


@pytest.mark.parametrize("options", [[], ["--log", "learn"]], ids=["state", "log"])
def test_a_run_may_be_named_by_its_directory_or_its_configuration(options, tmp_path: Path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("name: mine\nrollout: {tasks: [fake/click-button]}\n")
    run = open_run(load_config(tmp_path / "mine.yaml"), tmp_path / "kept")
    (run.logs / "learn.log").write_text("learns\n")
    for place, names in (
        (tmp_path, ("kept/mine", "kept/mine/", "kept/mine/config.yaml")),
        (run.root, (".", "config.yaml")),
        (tmp_path / "kept", ("mine", str(run.root))),
    ):
        monkeypatch.chdir(place)
        for name in names:
            result = CliRunner().invoke(app, ["status", name, *options])
            assert result.exit_code == 0 and ("mine:" in result.output or "learn" in result.output), (name, result)
    result = CliRunner().invoke(app, ["status", "elsewhere/mine", *options])
    assert isinstance(result.exception, RunDirectoryError) and "no run" in str(result.exception)
