"""A plug-in that cannot be used stops a run before it begins with one line, and so the process that needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dart_gym.core.errors import DartGymError
from dart_gym.tasks.catalog import registry
from dart_gym.utils.plugins import child_environment
from dart_train.config.run_config import load_config
from dart_train.core.train_errors import DartTrainError
from dart_train.preflight.problems import refuse
from dart_train.preflight.run_check import check_elsewhere
from tests.helpers.packages import install

CONFIG = Path(__file__).parents[1] / "e2e.yaml"
SETTINGS = {
    "losses": "trainer.loss_type={}",
    "advantages": "trainer.advantage={}",
    "trainers": "trainer.kind={}",
    "curation_rules": "data.curation.rules=[{}]",
    "engines": "rollout.engine.kind={}",
    "formats": "agent.format={}",
    "suites": "rollout.tasks=[{}/x]",
}
FOR_ANY_TRAINER = "rollout.sync.transfer=files"
"""The run of the file takes its weights from memory, which is for our own trainer only: a second problem."""
BAD = {
    "gone-library": ("bad_of_tests:Thing", "ModuleNotFoundError: No module named 'no_such_library'"),
    "gone-class": ("half_of_tests:Thing", "half_of_tests has no Thing"),
    "half": ("half_of_tests:Half", "cannot be used: it "),
}
BUILT_IN = {
    "losses": "grpo",
    "advantages": "trajectory",
    "trainers": "dart_grpo",
    "engines": "transformers",
    "formats": "ui_tars",
    "suites": "fake",
}
SOURCES = {"bad_of_tests": "import no_such_library", "half_of_tests": "class Half: pass"}


@pytest.fixture(autouse=True)
def suites_are_read_anew():
    """A suite is resolved once in a process, and another test may have done that before the bad package was there."""
    registry.forget_suites()


def check(config) -> None:
    refuse(check_elsewhere(config).problems)


def package(directory: Path, points: dict[str, dict[str, str]]) -> None:
    install(directory, "bad-package", {f"dart_gui.{group}": names for group, names in points.items()}, SOURCES)


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("group", SETTINGS)
def test_a_run_is_refused_before_it_begins(tmp_path, monkeypatch, group, name):
    package(tmp_path, {group: {name: BAD[name][0]}})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises((DartGymError, DartTrainError)) as caught:
        check(load_config(CONFIG, [SETTINGS[group].format(name), FOR_ANY_TRAINER]))
    text = str(caught.value)
    for part in (f"{name!r} of the package 'bad-package'", BAD[name][1]):
        assert part in text
    assert len(text.splitlines()) == 1 + text.startswith(str(CONFIG)), "one line, after that of the file"


@pytest.mark.parametrize("group", BUILT_IN)
def test_a_package_that_takes_a_built_in_name_is_refused(tmp_path, monkeypatch, group):
    package(tmp_path, {group: {BUILT_IN[group]: "half_of_tests:Half"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    setting = SETTINGS[group].format(BUILT_IN[group]).replace("fake/x", "fake/two-steps")
    with pytest.raises((DartGymError, DartTrainError), match="the package 'bad-package' adds the .*built in: rename"):
        check(load_config(CONFIG, [setting]))


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "setting", "says"),
    [
        ("run", "trainer.kind=half", "the trainer 'half' of the package 'bad-package'"),
        pytest.param(
            "process learn",
            "trainer.loss_type=half",
            "the loss 'half' of the package 'bad-package'",
            marks=pytest.mark.slow,
        ),
        ("process rollout", "rollout.engine.kind=half", "the engine 'half' of the package 'bad-package'"),
        ("process demonstrate", "data.curation.rules=[half]", "the curation rule 'half' of the package 'bad-package'"),
    ],
)
def test_a_process_ends_with_one_line(tmp_path, command, setting, says):
    points = {group: {"half": "half_of_tests:Half"} for group in SETTINGS}
    package(tmp_path / "site", points)
    environment = child_environment({**os.environ, "PYTHONPATH": str(tmp_path / "site")})
    word, *phase = command.split()
    argv = [sys.executable, "-m", "dart_train", word, str(CONFIG), *phase]
    argv += ["--runs-dir", str(tmp_path), "--set", setting]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr, done.stderr
