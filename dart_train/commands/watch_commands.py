"""`dart-train status` and `stop` of a run, on this machine or on any node of its cluster."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dart_train.commands.options import DEFAULT_RUNS_DIR, Ray, RunsDir
from dart_train.run import run_status
from dart_train.run.run_directory import RunDirectory

app = typer.Typer()
Timeout = Annotated[float, typer.Option(min=0.1, help="with --ray: seconds to wait for the cluster")]
RunName = Annotated[str, typer.Argument(metavar="NAME", help="name of the run, its directory or its config.yaml")]


@app.command()
def status(
    name: RunName,
    log: Annotated[str | None, typer.Option(help="print the end of this process's log, such as rollout")] = None,
    lines: Annotated[int, typer.Option(help="with --log: how many of its last lines")] = 40,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    ray: Ray = None,
    timeout: Timeout = 15.0,
) -> None:
    """Show the state of a run: its phase, its processes with their nodes, and processes that wait for a node."""
    if log is None:
        _say(name, runs_dir, ray, timeout, "status")
    else:
        _say(name, runs_dir, ray, timeout, "log", process=log, lines=lines)


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


def _directory(name: str, runs_dir: Path) -> Path:
    """Return the directory of a run, which is given by its name, its directory or its configuration."""
    given = Path(name)
    for place in (runs_dir / name, given, given.parent if given.name == RunDirectory(given).config.name else given):
        if RunDirectory(place).config.is_file():
            return place.resolve()
    return runs_dir / name if given.name == name else given
