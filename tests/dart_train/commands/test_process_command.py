"""`dart-train process` starts each process of a run by its name, with the options that the process takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_gym.core.errors import ConfigurationError
from dart_train.commands.train_cli import app
from dart_train.data.maintenance import data_service
from dart_train.processes import demonstrate, learn, monitor, prepare, rollout, run_process, warmup

MODULES = {
    "prepare": prepare, "demonstrate": demonstrate, "warmup": warmup, "rollout": rollout, "learn": learn,
    "monitor": monitor, "supervised": warmup,
}  # fmt: skip
VALUES = {"--url": "ws://127.0.0.1:9", "--plain": None, "--engine-gpus": "0,1", "--gpu-memory": "0.5"}


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps({"name": "tiny", "rollout": {"tasks": [{"id": "fake/button"}]}}))
    return [str(path), "--runs-dir", str(tmp_path / "runs")]


def words_of(option: str) -> list[str]:
    return [option, *([VALUES[option]] if VALUES[option] else [])]


def test_the_help_names_every_process_that_is_built_in(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # else names are broken over lines
    said = CliRunner().invoke(app, ["process", "--help"]).output
    assert f"{', '.join(run_process.OWN)}, or a phase" in said


@pytest.mark.parametrize("name", MODULES)
def test_a_process_gets_its_options_and_refuses_the_others(name, config, monkeypatch):
    seen = []
    monkeypatch.setattr(MODULES[name], "main", lambda context, **given: seen.append((context, given)))
    takes = run_process.OWN[name].takes
    options = [word for option in takes for word in words_of(option)]
    result = CliRunner().invoke(app, ["process", *config, name, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    [(context, given)] = seen
    assert (context.config.cluster.url == VALUES["--url"]) == ("--url" in takes)
    if "--engine-gpus" in takes:
        assert given["places"].gpus == ((0, 1),) and given["places"].memory == 0.5
    elif "--gpu-memory" in takes:
        assert given["gpu_memory"] == 0.5
    assert given.get("plain", False) is ("--plain" in takes)
    for option in VALUES.keys() - set(takes):
        result = CliRunner().invoke(app, ["process", *config, name, *words_of(option)])
        assert isinstance(result.exception, ConfigurationError), result.output
        assert f"the process {name} takes no {option}; it is an option of" in str(result.exception)
    assert len(seen) == 1


@pytest.mark.parametrize("arguments", [["CONFIG", "data"], ["--name", "x", "CONFIG", "data"]])
def test_the_data_manager_is_the_process_data(arguments, monkeypatch, config):
    served = []
    monkeypatch.setattr(data_service, "run_data_service", lambda service: served.append(service.data.run_id))
    words = [config[0] if word == "CONFIG" else word for word in arguments]
    result = CliRunner().invoke(app, ["process", *words, *config[1:]], catch_exceptions=False)
    assert result.exit_code == 0 and served == ["x" if "x" in arguments else "tiny"]


def test_a_process_that_does_not_exist_is_refused_by_name(config):
    result = CliRunner().invoke(app, ["process", *config, "lern"])
    with pytest.raises(ConfigurationError, match="'lern'.*did you mean 'learn'"):
        raise result.exception
