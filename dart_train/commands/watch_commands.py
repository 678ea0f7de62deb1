"""`dart-train status` and `stop` of a run, on this machine or on any node of its cluster."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dart_gym.commands.json_output import JsonOption, write_json
from dart_gym.utils.waits import waiting_for
from dart_train.commands.data_tables import show_status, status_rows
from dart_train.commands.options import DEFAULT_RUNS_DIR, Overrides, Ray, RunsDir, load
from dart_train.config.run_config import ConfigError
from dart_train.run import run_status
from dart_train.run.run_directory import RunDirectory, RunDirectoryError, explained_file_errors

app = typer.Typer()
Timeout = Annotated[
    float, typer.Option(min=0.1, help="seconds to wait for a database or a cluster that does not answer")
]
RunName = Annotated[str, typer.Argument(metavar="NAME", help="name of the run, its directory or its configuration")]


@app.command()
def status(
    name: RunName,
    log: Annotated[str | None, typer.Option(help="print the end of this process's log, such as rollout")] = None,
    lines: Annotated[int, typer.Option(help="with --log: how many of its last lines")] = 40,
    overrides: Overrides = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    ray: Ray = None,
    timeout: Timeout = 15.0,
    json_file: JsonOption = None,
) -> None:
    """Show the state of a run: its phase, its processes with their nodes, and processes that wait for a node.

    Where its directory is, show its data, too: queue, incomplete groups, staleness, success by task, pool and dropped
    data, with a diagnosis.
    """
    if (log is not None or ray is not None) and (json_file is not None or overrides):
        left_out = "--log" if log is not None else "--ray"
        raise ConfigError(f"--json and --set are about the run's data, which is not shown with {left_out}")
    if log is not None:
        _say(name, runs_dir, ray, timeout, "log", process=log, lines=lines)
        return
    _say(name, runs_dir, ray, timeout, "status")
    if ray is None:
        _show_data(RunDirectory(_directory(name, runs_dir)), overrides, timeout, json_file)


@app.command()
def stop(name: RunName, runs_dir: RunsDir = DEFAULT_RUNS_DIR, ray: Ray = None, timeout: Timeout = 15.0) -> None:
    """Stop a run cleanly. Running the same command again resumes it."""
    _say(name, runs_dir, ray, timeout, "stop")


def _say(name: str, runs_dir: Path, ray: str | None, timeout_s: float, what: str, **arguments: Any) -> None:
    if ray is None:
        typer.echo(run_status.RunWindow(str(_directory(name, runs_dir))).ask(what, arguments))
        return
    from dart_train.nodes.ray_cluster import ask_window

    typer.echo(ask_window(ray, name, what, arguments, timeout_s))


def _show_data(run: RunDirectory, overrides: list[str] | None, timeout_s: float, json_file: Path | None) -> None:
    """Show the data of a run that has some, from the database of the run's own configuration.

    Raises:
        RunDirectoryError: if `json_file` is to be written and there is no data yet.
    """
    loaded = load(run.config, overrides, None)
    if loaded.data.database_url() is None and not run.database.is_file():
        if json_file is not None:
            raise RunDirectoryError(f"there is no data at {run.root} yet, and {json_file} was not written")
        typer.echo("  it has no data yet")
        return
    with waiting_for("the program to load"):
        from dart_train.processes.process_context import ProcessContext

    with explained_file_errors(run.root):
        context = ProcessContext(loaded, run)
        context.limit_waits(timeout_s)
        with context.open_data() as data, waiting_for("the numbers of the run's data"):
            now = data.status()
    write_json(json_file, status_rows(now))
    show_status(now, Console())


def _directory(name: str, runs_dir: Path) -> Path:
    """Return the directory of a run, which is given by its name, its directory or a configuration.

    Raises:
        ConfigError: if a file is given that is no configuration.
    """
    given = Path(name)
    for place in (runs_dir / name, given, given.parent if given.name == RunDirectory(given).config.name else given):
        if RunDirectory(place).config.is_file():
            return place.resolve()
    if given.is_file():
        return runs_dir / load(given, None, None).name
    return runs_dir / name if given.name == name else given
