"""Options that the commands of `dart-train` share, and what each command's module starts from."""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from dart_train.config.run_config import RunConfig, load_config
from dart_train.run.run_directory import explained_file_errors

if TYPE_CHECKING:
    from dart_train.modules.module_context import ModuleContext

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="a YAML file, see configs/")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override, such as rollout.workers=2")
]
Name = Annotated[str | None, typer.Option(help="name of the run; its directory is RUNS_DIR/NAME")]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="on the nodes of a Ray cluster: auto, or HOST:PORT of its head"),
]
RunsDir = Annotated[Path, typer.Option(help="where the runs are kept")]
Url = Annotated[str | None, typer.Option("--url", help="address of the cluster, instead of `cluster.url`")]

EngineGPUs = Annotated[
    list[str] | None, typer.Option("--engine-gpus", metavar="0,1", help="GPUs of an engine, once for each")
]
GPUMemory = Annotated[float | None, typer.Option(min=0.01, max=1, help="share of its GPUs' memory that it may take")]

DEFAULT_RUNS_DIR = Path("runs")


def load(config: Path, overrides: list[str] | None, name: str | None) -> RunConfig:
    """Read a configuration with what the command line says over it."""
    return load_config(config, [*(overrides or []), *([f"name={name}"] if name else [])])


@contextlib.contextmanager
def module_context(
    config: ConfigPath,
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    url: Url = None,
) -> Iterator[ModuleContext]:
    """What a module needs; what the file system does to it meanwhile is explained."""
    from dart_train.launch.pipeline import open_run
    from dart_train.modules.module_context import ModuleContext

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for chatty in ("httpx", "botocore", "aiobotocore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    loaded = load(config, overrides, name)
    with explained_file_errors(runs_dir / loaded.name):
        run = open_run(loaded, runs_dir)
        if url is not None:
            loaded = loaded.model_copy(update={"cluster": loaded.cluster.model_copy(update={"url": url})})
        yield ModuleContext(loaded, run)


def on_run(*, url: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `module_context` before its own; with `url` also `--url`, another cluster's."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        shared, own = _parameters(module_context)[: 5 if url else 4], _parameters(command)[1:]

        def wrapper(**given: Any) -> None:
            with module_context(**{option.name: given.pop(option.name) for option in shared}) as context:
                command(context, **given)

        wrapper.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
        wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
        return wrapper

    return decorate


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters with evaluated annotations."""
    hints = get_type_hints(inspect.unwrap(function), localns={"ModuleContext": Any}, include_extras=True)
    return [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
    ]
