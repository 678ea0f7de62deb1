"""`init` of the three programs: what is written is what the program reads, and nothing is overwritten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import typer
import yaml
from typer.testing import CliRunner

import dart_agent.commands.agent_cli
import dart_gym.commands.gym_cli
from dart_agent.commands import agent_init
from dart_agent.policies.policy_factory import POLICIES, PolicyOptions
from dart_gym.cluster.server.server_settings import ServerSettings
from dart_gym.commands import first_files, gym_init
from dart_gym.core.errors import ConfigurationError
from dart_gym.tasks.catalog import registry
from dart_train.commands import train_init
from dart_train.commands.train_program import app as train_app
from dart_train.config.run_config import load_config
from dart_train.preflight.run_check import check_run

ROOT = Path(__file__).parents[3]
PROGRAMS = {
    "dart-gym": (dart_gym.commands.gym_cli.app, gym_init.KINDS),
    "dart-agent": (dart_agent.commands.agent_cli.app, agent_init.KINDS),
    "dart-train": (train_app, train_init.KINDS),
}
ALL = [(program, kind) for program, (_, kinds) in PROGRAMS.items() for kind in kinds]
MACHINE = (
    "this run wants GPUs",
    "model.path: no model 'models/",
    "'osworld/*' stands for no task",
    "DART_DATA_URL",
    "the store cannot be reached",
)
"""What a configuration for another machine may lack here."""


def init(program: str, kind: str, *arguments: str) -> str:
    result = CliRunner().invoke(PROGRAMS[program][0], ["init", kind, *arguments], standalone_mode=False)
    if isinstance(result.exception, SystemExit):
        raise ConfigurationError(result.stderr)  # as `dart-gym` shows it
    if result.exception:
        raise result.exception
    return result.output


@pytest.mark.parametrize(("program", "kind"), ALL)
def test_what_is_written_is_what_the_schema_allows(program: str, kind: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = init(program, kind)
    for path in tmp_path.glob("*.yaml"):
        name = path.read_text().splitlines()[0].removeprefix("# yaml-language-server: $schema=")
        schema = json.loads((tmp_path / name).read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(yaml.safe_load(path.read_text()), schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"no_such_key": 1}, schema)
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        assert f"wrote {path.relative_to(tmp_path)}\n" in said


@pytest.mark.parametrize(("program", "kind"), ALL)
def test_what_comes_next_is_a_command_with_its_options(program: str, kind: str, tmp_path):
    said = init(program, kind, "--out", str(tmp_path / "new"))
    steps = said.partition("next:\n")[2].splitlines()
    assert steps[0] == f"  cd {tmp_path / 'new'}" and len(steps) > 1
    for step in PROGRAMS[program][1][kind].steps:
        words = step.partition("  #")[0].split()
        if words[0] in PROGRAMS:
            group = typer.main.get_command(PROGRAMS[words[0]][0])
            options = {option for parameter in group.commands[words[1]].params for option in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.train  # the check before a run asks the trainer's own settings
@pytest.mark.parametrize("kind", train_init.KINDS)
def test_a_first_run_lacks_nothing_but_its_machine(kind: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DART_GYM_OSWORLD", raising=False)
    monkeypatch.setenv("DART_DATA_URL", "sqlite:///data.sqlite")
    init("dart-train", kind)
    found = check_run(load_config(Path("run.yaml")), Path("runs")).problems
    assert not [problem for problem in found if not any(one in problem for one in MACHINE)]
    assert kind not in ("quickstart", "own-tasks") or not found


def test_pages_that_are_named_are_there():
    root = Path(__file__).parents[3]
    pages = {page for _, kinds in PROGRAMS.values() for kind in kinds.values() for page in kind.pages}
    assert all((root / "docs" / f"{page}.md").is_file() for page in pages)


def test_the_first_runs_on_one_machine_and_on_several_are_the_same():
    texts = {kind: first_files.package_texts("dart_train", kind)["run.yaml"] for kind in ("quickstart", "ray")}
    quick, ray = (yaml.safe_load(text) for text in texts.values())
    assert ray["data"].keys() - quick["data"].keys() == {"url_env", "files"}
    for run in (quick, ray):
        del run["name"], run["data"]
    assert quick == ray


@pytest.mark.parametrize("kind", agent_init.KINDS)
def test_settings_of_a_policy_are_options(kind: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    init("dart-agent", kind)
    options = PolicyOptions.parse(yaml.safe_load(Path("agent.yaml").read_text()))
    assert options.policy in {*POLICIES.names(), "anthropic", "policy:Clicker"}


def test_a_server_and_a_task_of_ones_own_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    init("dart-gym", "cluster")
    assert ServerSettings.parse(yaml.safe_load(Path("cluster.yaml").read_text())).desktops == 2
    assert "token" not in json.loads(Path(gym_init.SCHEMA).read_text())["properties"]  # it never stands in a file
    init("dart-gym", "tasks")
    assert registry.get_task("tasks/confirm.json").max_steps == 3


@pytest.mark.thorough
@pytest.mark.process
def test_a_function_of_ones_own_plays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    init("dart-agent", "function")
    command = ["eval", "fake/click-button", "--config", "agent.yaml", "--n", "4", "--json", "scores.json"]
    result = CliRunner().invoke(dart_agent.commands.agent_cli.app, command)
    assert result.exit_code == 0, result.output
    assert json.loads(Path("scores.json").read_text())["scores"][0]["successes"] == 4


@pytest.mark.parametrize(("program", "kind"), ALL)
def test_nothing_is_overwritten(program: str, kind: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    init(program, kind)
    (mine,) = list(tmp_path.glob("[acr]*.yaml")) or list(tmp_path.glob("tasks/*.json"))
    mine.write_text("mine")
    others = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigurationError, match=f"{mine.relative_to(tmp_path)}.* there already.*--out"):
        init(program, kind)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == others


def test_a_link_that_leads_nowhere_is_not_written_through(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("agent.yaml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="agent.yaml is there already"):
        init("dart-agent", "server")
    assert [path.name for path in tmp_path.iterdir()] == ["agent.yaml"]


def test_programs_share_a_directory(tmp_path, monkeypatch):
    """A schema that is there and the same is no obstacle."""
    monkeypatch.chdir(tmp_path)
    init("dart-agent", "server")
    Path("agent.yaml").rename("server.yaml")
    assert "schema" not in init("dart-agent", "vllm")
    init("dart-train", "quickstart")


@pytest.mark.parametrize("options", [["--seed", "1"], ["--set", "layers=1"]])
def test_options_of_the_tiny_model_are_refused_elsewhere(options, tmp_path):
    with pytest.raises(ConfigurationError, match="the kind tiny, and this is server"):
        init("dart-agent", "server", "--out", str(tmp_path / "x"), *options)
    with pytest.raises(ConfigurationError, match="did you mean 'tiny'"):
        init("dart-agent", "tny", "--out", str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_an_unknown_kind_says_which_there_are(tmp_path):
    with pytest.raises(ConfigurationError, match="no kind 'quikstart'.*did you mean 'quickstart'"):
        init("dart-train", "quikstart", "--out", str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


@pytest.mark.process
def test_a_file_that_cannot_be_filled_leaves_no_file(tmp_path):
    """A limit on the size of files stands for a full disk."""
    command = f'ulimit -f 1; exec "{sys.executable}" -B -m dart_agent.commands.agent_cli init'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "cannot use " in done.stderr.splitlines()[-1] and "File too large" in done.stderr
    assert not list(tmp_path.iterdir())
