"""Difficulty: what looks at nothing solves little, and the command says how much."""

from typer.testing import CliRunner

from dart_lab.gym.difficulty_bench import measure
from dart_lab.gym.gym_commands import app


async def test_tasks_of_one_click_are_solved_by_chance_and_those_of_several_are_not():
    said = []
    easy, hard = await measure(["fake/click-button", "drawn/wizard"], 20, said.append)
    assert said == ["fake/click-button", "drawn/wizard"]
    assert easy["actions"] == 1 and 0 < easy["click"] < 1 and 0 < easy["replay"] < 1
    assert hard["actions"] == 6 and hard["random"] == hard["click"] == 0.0 and hard["replay"] < 0.3


def test_the_command_prints_a_table():
    shown = CliRunner().invoke(app, ["difficulty", "fake", "--seeds", "2"])
    assert shown.exit_code == 0 and "| fake/two-steps | 2.0 |" in shown.stdout, shown.output
