"""The command `dart-gym tasks new`: a wizard whose every answer is an option as well."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from dart_gym.core.errors import ConfigurationError
from dart_gym_task_generator.recorded_episode import from_episode
from dart_gym_task_generator.suite_package import from_template, module_of, templates, write_task


def new_task(
    suite: Annotated[str | None, typer.Argument(help="Name of your suite, a new one or one made by this.")] = None,
    task: Annotated[str | None, typer.Option(help="Name of the task.")] = None,
    template: Annotated[str | None, typer.Option(help=f"What it begins as: {', '.join(templates())}.")] = None,
    instruction: Annotated[str | None, typer.Option(help="With the parameter in braces.")] = None,
    parameter: Annotated[str | None, typer.Option(help="Name of what the seed chooses.")] = None,
    choices: Annotated[str | None, typer.Option(help="Its values, separated by commas.")] = None,
    episode: Annotated[
        Path | None,
        typer.Option("--from-episode", help="Directory of a recorded episode, instead of a template; it is replayed."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the suite's package; ./SUITE by default.")] = None,
) -> None:
    """Write a task of your own, with set-up, evaluator, oracle and test, into the package of a suite."""
    suite = _asked(suite, "SUITE", "Name of the suite", None)
    task = _asked(task, "--task", "Name of the task", "first")
    if episode is not None:
        raw = asyncio.run(from_episode(episode, task, instruction or "", module_of(suite)))
    else:
        template = _asked(template, "--template", f"Template ({', '.join(templates())})", "dialog")
        name = _asked(parameter, "--parameter", "Name of what the seed chooses", "value")
        usual = from_template(template, task, parameter=name)
        text = _asked(instruction, "--instruction", "Instruction", usual["instruction"])
        drawn = ",".join(usual["dart"]["parameters"][name]["choice"])
        raw = from_template(template, task, text, name, _asked(choices, "--choices", "Values, with commas", drawn))
    folder = out or Path(suite)
    for path in write_task(folder, suite, raw):
        print(path)
    print(
        f"next: dart-gym tasks check {folder}; (cd {folder} && pytest); docs/guides/tasks.md says more", file=sys.stderr
    )


def _asked(given: str | None, option: str, question: str, default: str | None) -> str:
    """An answer: that of the option, or a person's; without a terminal the default. `ConfigurationError`: none."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        return str(typer.prompt(question, default=default, err=True))
    if default is None:
        raise ConfigurationError(f"{option} is needed where nobody can be asked (there is no terminal)")
    return default


def mount(app: typer.Typer) -> None:
    """Add the command to a group."""
    app.command("new")(new_task)
