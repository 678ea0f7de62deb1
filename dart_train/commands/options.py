"""Options that the commands of `dart-train` share, and what each command's module starts from."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
RunsDir = Annotated[Path, typer.Option(help="where the runs are kept")]
Url = Annotated[str | None, typer.Option("--url", help="address of the cluster, instead of `cluster.url`")]

DEFAULT_RUNS_DIR = Path("runs")


def load(config: Path, overrides: list[str] | None, name: str | None) -> RunConfig:
    """Read a configuration with what the command line says over it."""
    return load_config(config, [*(overrides or []), *([f"name={name}"] if name else [])])


@contextlib.contextmanager
def module_context(
    config: Path, overrides: list[str] | None, name: str | None, runs_dir: Path, url: str | None = None
) -> Iterator[ModuleContext]:
    """What a module needs; what the file system does to it meanwhile is explained."""
    from dart_train.launch.pipeline import open_run
    from dart_train.modules.module_context import ModuleContext

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    loaded = load(config, overrides, name)
    with explained_file_errors(runs_dir / loaded.name):
        run = open_run(loaded, runs_dir)
        if url is not None:
            loaded = loaded.model_copy(update={"cluster": loaded.cluster.model_copy(update={"url": url})})
        yield ModuleContext(loaded, run)
