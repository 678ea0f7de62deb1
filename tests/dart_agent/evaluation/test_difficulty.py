"""Pass rates by policy, kept with a suite or in a file: written by commands, merged, read, refused."""

import json

import pytest
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.evaluation.difficulty import difficulty_file, known_rates, write_difficulty
from dart_agent.evaluation.scores import wilson_interval
from dart_gym.core.errors import ConfigurationError
from dart_lab.gym.gym_commands import app as bench


def test_what_was_measured_again_replaces_and_all_else_stays(tmp_path):
    path = str(tmp_path / "rates.json")
    write_difficulty(path, "a", {"t/one": (1, 4), "t/two": (0, 8), "t/lost": (0, 0)})
    write_difficulty(path, "b", {"t/one": (4, 4)})
    write_difficulty(path, "a", {"t/one": (3, 4)})
    assert known_rates(path, "a") == {"t/one": 0.75, "t/two": 0.0}
    assert known_rates(path, "b") == {"t/one": 1.0}
    row = json.loads((tmp_path / "rates.json").read_text())["policies"]["a"]["t/two"]
    assert (row["episodes"], row["low"], row["high"]) == (8, 0.0, round(wilson_interval(0, 8)[1], 4))


def test_it_lies_beside_a_suite_s_tasks_and_knows_them_as_the_suite_is_named(tmp_path, monkeypatch):
    package = tmp_path / "meadow_tasks"
    package.mkdir()
    (package / "__init__.py").write_text(
        "class Meadow:\n    def load_tasks(self):\n        return []\n\n"
        "    def make_scenario(self):\n        return None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert difficulty_file("meadow_tasks:Meadow") == package / "_difficulty.json"
    write_difficulty("meadow_tasks:Meadow", "a", {"meadow/cow": (1, 2)})
    assert known_rates("meadow_tasks:Meadow") == {"meadow_tasks:Meadow/cow": 0.5}
    assert difficulty_file("drawn").parent.name == "drawn" and difficulty_file("drawn").name == "_difficulty.json"
    assert difficulty_file("fake").name == "_fake_suite_difficulty.json"


def test_the_suite_drawn_carries_what_blind_policies_reach():
    rates = known_rates("drawn", "blind random")
    assert len(rates) == 14 and set(rates.values()) == {0.0}
    assert max(known_rates("drawn", "blind replay").values()) > 0.0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no pass rates"),
        ("[]", "holds no pass rates"),
        ('{"format": 2, "policies": {}}', "format 2"),
        ('{"format": 1, "policies": {"a": {"t/x": {"rate": 1.5}}}}', "t/x has no rate"),
        ('{"format": 1, "policies": {"a": {"t/x": {"rate": NaN}}}}', "t/x has no rate"),
        ('{"format": 1, "policies": {"a": {"t/x": {}}}}', "KeyError"),
        ('{"format": 1, "policies": {"a": {}, "b": {}}}', "several policies and none is named; known: a, b"),
    ],
)
def test_what_is_no_such_file_is_one_line_and_stays_as_it_is(tmp_path, content, says):
    path = tmp_path / "rates.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=says) as caught:
        known_rates(str(path))
    assert "\n" not in str(caught.value) and path.read_text() == content
    with pytest.raises(ConfigurationError, match="No such file"):
        known_rates(str(tmp_path / "none.json"))


def test_a_policy_that_was_not_measured_is_named(tmp_path):
    write_difficulty(str(tmp_path / "r.json"), "random", {"t/x": (0, 3)})
    with pytest.raises(ConfigurationError, match="no policy 'randm'; did you mean 'random'"):
        known_rates(str(tmp_path / "r.json"), "randm")
    with pytest.raises(ConfigurationError, match="name a file instead"):
        write_difficulty(str(tmp_path / "none" / "r.json"), "random", {"t/x": (0, 3)})


def test_the_commands_write_it(tmp_path):
    path = tmp_path / "rates.json"
    command = ["eval", "fake", "--policy", "oracle", "--n", "3", "--difficulty", str(path)]
    found = CliRunner().invoke(agent_cli.app, command)
    assert found.exit_code == 0, found.output + repr(found.exception)
    assert set(known_rates(str(path), "oracle").values()) == {1.0} and "fake/two-steps" in known_rates(str(path))
    found = CliRunner().invoke(bench, ["difficulty", "fake/two-steps", "--seeds", "2", "--difficulty", str(path)])
    assert found.exit_code == 0, found.output
    assert set(known_rates(str(path), "blind random")) == {"fake/two-steps"}
    assert known_rates(str(path), "oracle")["fake/two-steps"] == 1.0
