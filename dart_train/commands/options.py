"""Options that the commands of `dart-train` share, and the context in which each command runs."""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from dart_train.config.run_config import ConfigError, RunConfig, load_config
from dart_train.run.run_directory import RunDirectory, RunDirectoryError, explained_file_errors

if TYPE_CHECKING:
    from dart_train.processes.process_context import ProcessContext


def configuration_in(given: Path) -> Path:
    """Return the configuration of a run whose directory is given, and any other path as it is.

    Raises:
        ConfigError: if a directory is given that holds no run.
    """
    of_run = RunDirectory(given).config
    if of_run.is_file():
        return of_run
    if given.is_dir():
        raise ConfigError(f"{given} is a directory without a {of_run.name}: name a run's directory, or a YAML file")
    return given


ConfigPath = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="a YAML file, which `dart-train init` writes, or the directory of a run",
        callback=configuration_in,
    ),
]
OptionalConfigPath = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG]",
        help="a YAML file, or the directory of a run",
        callback=lambda given: None if given is None else configuration_in(given),
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override, such as rollout.workers=2")
]
Name = Annotated[str | None, typer.Option(help="name of the run; its directory is RUNS_DIR/NAME")]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="on the nodes of a Ray cluster: auto, or HOST:PORT of its head"),
]
RunsDir = Annotated[Path, typer.Option(help="where the runs are kept")]
Timeout = Annotated[
    float | None,
    typer.Option(min=0.1, help="seconds to wait for a database or a cluster that does not answer; 15 if not given"),
]
Url = Annotated[str | None, typer.Option("--url", help="address of the cluster, instead of `cluster.url`")]

EngineGPUs = Annotated[
    list[str] | None, typer.Option("--engine-gpus", metavar="0,1", help="GPUs of an engine, once for each")
]
GPUMemory = Annotated[float | None, typer.Option(min=0.01, max=1, help="share of its GPUs' memory that it may take")]

DEFAULT_RUNS_DIR = Path("runs")


def load(config: Path, overrides: list[str] | None, name: str | None) -> RunConfig:
    """Read a configuration and apply the overrides of the command line."""
    return load_config(config, [*(overrides or []), *([f"name={name}"] if name else [])])


@contextlib.contextmanager
def process_context(
    config: ConfigPath,
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    url: Url = None,
    timeout: Timeout = None,
    reads: bool = False,
) -> Iterator[ProcessContext]:
    """Yield what a process needs, and explain errors of the file system in the block.

    A configuration that lies in a run directory belongs to that run, from wherever the command is called. With `reads`
    nothing is created.
    """
    from dart_train.launch.pipeline import open_run
    from dart_train.processes.process_context import ProcessContext

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for chatty in ("httpx", "botocore", "aiobotocore", "matplotlib"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    loaded = load(config, overrides, name)
    root, own = run_root(config, loaded, runs_dir, named=name is not None)
    with explained_file_errors(root):
        if reads:
            run = existing_run(root, loaded)
        elif own and not overrides:
            run = RunDirectory(root)
        else:
            run = open_run(loaded, runs_dir_of(root, loaded))
        if url is not None:
            loaded = loaded.model_copy(update={"cluster": loaded.cluster.model_copy(update={"url": url})})
        context = ProcessContext(loaded, run)
        if timeout is not None:
            context.limit_waits(timeout)
        yield context


def run_root(config: Path, loaded: RunConfig, runs_dir: Path, *, named: bool = False) -> tuple[Path, bool]:
    """Return the directory of a configuration's run, and whether the configuration file lies in it."""
    home = RunDirectory(config.resolve().parent)
    own = config.resolve() == home.config and (home.data.is_dir() or (home.root / "state.json").is_file())
    if own and not named and runs_dir == DEFAULT_RUNS_DIR:
        return home.root, True
    return runs_dir / loaded.name, False


def runs_dir_of(root: Path, loaded: RunConfig) -> Path:
    """Return the directory of all runs, in which a run is opened by its name.

    Raises:
        RunDirectoryError: if the run's directory was renamed.
    """
    if root.name != loaded.name:
        raise RunDirectoryError(
            f"{root} holds the run {loaded.name!r}: give the directory that name again to resume the run, or choose "
            "another --name for a new run"
        )
    return root.parent


def existing_run(root: Path, config: RunConfig) -> RunDirectory:
    """Return an existing run, for a command that only reads. Raises `RunDirectoryError`; creates nothing."""
    run = RunDirectory(root)
    own_database = config.data.database_url() is None
    what = ""
    if not run.config.is_file():
        what = "run"
    elif own_database and not run.database.is_file():
        what = "data"
    if what:
        raise RunDirectoryError(
            f"there is no {what} at {root.absolute()}: name the run's directory, or the directory that the runs are in "
            f"with --runs-dir; `dart-train run` begins a run"
        )
    return run


def on_run(*, url: bool = False, reads: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `process_context` before its own; with `url` also `--url`.

    A command that only `reads` creates no run.
    """
    left_out = {"reads", *(() if url else ("url",))}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        shared = [option for option in _parameters(process_context) if option.name not in left_out]
        own = _parameters(command)[1:]

        def wrapper(**given: Any) -> None:
            options = {option.name: given.pop(option.name) for option in shared}
            with process_context(**options, reads=reads) as context:
                command(context, **given)

        wrapper.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
        wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
        return wrapper

    return decorate


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function, with evaluated annotations."""
    hints = get_type_hints(inspect.unwrap(function), localns={"ProcessContext": Any}, include_extras=True)
    return [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
    ]
