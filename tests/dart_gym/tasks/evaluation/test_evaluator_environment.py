"""The evaluator's environment: found only when it is finished, refused with the next step otherwise."""

from __future__ import annotations

import pytest

from dart_gym.core.errors import ConfigurationError, MissingDependencyError
from dart_gym.tasks.evaluation import evaluator_environment


def test_it_is_looked_for_where_the_variable_says(monkeypatch, tmp_path):
    monkeypatch.setenv(evaluator_environment.VARIABLE, str(tmp_path / "here"))
    assert evaluator_environment.location() == tmp_path / "here"
    monkeypatch.delenv(evaluator_environment.VARIABLE)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert evaluator_environment.location() == tmp_path / "dart-gym" / "evaluator-1.0.2"


def test_a_missing_one_names_the_command(tmp_path):
    with pytest.raises(MissingDependencyError, match="not installed in .*dart-gym evaluator install"):
        evaluator_environment.find(tmp_path)


def test_one_made_from_other_requirements_does_not_count(tmp_path):
    (tmp_path / "dart-evaluator-0123456789abcdef").write_text("/usr\n")
    with pytest.raises(MissingDependencyError, match="other requirements"):
        evaluator_environment.find(tmp_path)


def test_a_finished_one_is_not_made_again(tmp_path, monkeypatch):
    evaluator_environment.stamp_file(tmp_path).write_text("/usr\n")
    monkeypatch.setattr(evaluator_environment, "_make", lambda *_: pytest.fail("nothing needs to be run"))
    found = evaluator_environment.install(tmp_path)
    assert (found.root, str(found.base)) == (tmp_path, "/usr")


def test_a_directory_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    with pytest.raises(ConfigurationError, match="holds something else"):
        evaluator_environment.install(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "dear"


def test_little_space_is_said_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator_environment, "NEEDED_MB", 1 << 40)
    with pytest.raises(MissingDependencyError, match="MB are free"):
        evaluator_environment.install(tmp_path / "new")
    assert not (tmp_path / "new").exists()
