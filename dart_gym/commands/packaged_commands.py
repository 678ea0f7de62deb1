"""Commands that packages of this project's folder `integrations` add to a group of a command line."""

import importlib
from collections.abc import Sequence

import typer

from dart_gym.core.errors import MissingDependencyError
from dart_gym.core.project_pages import integration


def mount_package(app: typer.Typer, group: str, commands: Sequence[str], module: str, folder: str) -> None:
    """Add a package's commands, or ones that say how to install it.

    Args:
        app: the group.
        group: its name on the command line.
        commands: that the package adds, as far as they are told of without it.
        module: of the package, whose `mount(app)` adds them.
        folder: of the package, below `integrations`.
    """
    try:
        importlib.import_module(module).mount(app)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.partition(".")[0]):
            raise  # it is there, and what it needs is not
        name = f"dart-gym-{folder.replace('_', '-')}"
        step = integration(folder)
        for command in commands:

            def missing(command: str = command) -> None:
                raise MissingDependencyError(f"`{group} {command}` needs the package {name}; next step: {step}")

            settings = {"allow_extra_args": True, "ignore_unknown_options": True}
            app.command(command, help=f"Needs the package {name}.", context_settings=settings)(missing)
