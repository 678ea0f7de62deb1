"""Commands of packages in the three programs: mounted by entry points, and none breaks the others."""

from __future__ import annotations

import typer
from typer.testing import CliRunner

from dart_gym.commands.added_commands import mount_added
from dart_gym.core.errors import PluginError
from tests.helpers.packages import install

CODE = "def told(name: str) -> None:\n    print('told', name)\n"


def program() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def serve() -> None:
        print("serves")

    mount_added(app, "gym")
    return app


def test_a_package_adds_a_command_and_a_broken_one_breaks_itself(tmp_path, monkeypatch):
    points = {"tell": "own_commands:told", "broken": "own_commands:absent"}
    install(tmp_path, "own-commands", {"dart_gui.commands.gym": points}, {"own_commands": CODE})
    monkeypatch.syspath_prepend(str(tmp_path))
    app = program()
    assert CliRunner().invoke(app, ["tell", "me"]).stdout == "told me\n"
    assert CliRunner().invoke(app, ["serve"]).stdout == "serves\n"
    error = CliRunner().invoke(app, ["broken"]).exception
    assert isinstance(error, PluginError) and "own-commands" in str(error) and "absent" in str(error)


def test_a_package_cannot_replace_a_command(tmp_path, monkeypatch):
    install(tmp_path, "thief", {"dart_gui.commands.gym": {"serve": "thieves:told"}}, {"thieves": CODE})
    monkeypatch.syspath_prepend(str(tmp_path))
    error = CliRunner().invoke(program(), ["serve"]).exception
    assert isinstance(error, PluginError) and "'thief'" in str(error) and "built in" in str(error)


def test_the_laboratory_of_the_checkout_is_mounted():
    assert CliRunner().invoke(program(), ["bench", "--help"]).exit_code == 0
