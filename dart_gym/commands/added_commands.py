"""Commands that installed packages, and the laboratory of a checkout, add to the three programs by entry points.

A package names a function or a `typer.Typer` in the group `dart_gui.commands.gym`, `.agent` or `.train`. A package
whose command cannot be imported breaks that command alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from dart_gym.core.errors import PluginError
from dart_gym.utils.plugins import Registry


def _callable(thing: Any) -> str | None:
    return None if callable(thing) else "is not a function or a typer.Typer"


def mount_added(app: typer.Typer, program: str) -> None:
    """Add the commands of the group `dart_gui.commands.PROGRAM`, after all commands of the program itself."""
    own = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    own += [group.name or "" for group in app.registered_groups]
    built_in: dict[str, Any] = dict.fromkeys(name.replace("_", "-") for name in own)
    added: Registry[Any] = Registry(
        f"command of dart-{program}", f"dart_gui.commands.{program}", built_in, (_callable,)
    )
    for name, origin in added.describe().items():
        if origin == "built in":
            continue
        try:
            command = added.get(name)
        except PluginError as error:
            command = _broken(error)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)


def _broken(error: PluginError) -> Callable[[], None]:
    def broken() -> None:
        raise error

    broken.__doc__ = "Cannot be loaded: run it to see why."
    return broken
