"""The commands `dart-train data ...`: the schema, and a run as one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from dart_gym.utils.waits import waiting_for
from dart_train.commands import data_care_commands
from dart_train.commands.options import DEFAULT_RUNS_DIR, Name, Overrides, RunsDir, Timeout, on_run, process_context
from dart_train.config.run_config import ConfigError

if TYPE_CHECKING:
    from dart_train.processes.process_context import ProcessContext

URL_VARIABLE = "DART_DATA_URL"


app = typer.Typer(no_args_is_help=True, help="Look after a run's data.")

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="a tar archive")]


@app.command()
def init(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="of a run, for its database")] = None,
    url: Annotated[str | None, typer.Option(help=f"a database; or set {URL_VARIABLE}")] = None,
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    timeout: Timeout = None,
) -> None:
    """Create the tables in an empty database, or upgrade an older schema."""
    from dart_train.data.store.schema import REVISION
    from dart_train.data.store.sql_store import UNAVAILABLE_TIMEOUT_S, Store

    if config is None:
        url = url or os.environ.get(URL_VARIABLE)
    elif url is None:
        with process_context(config, overrides, name, runs_dir) as context:
            url = context.database_url()
    else:
        raise ConfigError("name a configuration or --url, not both")
    if not url:
        raise ConfigError(f"which database? name a configuration, --url, or set the variable {URL_VARIABLE}")
    store = Store(url, upgrade=True, unavailable_timeout_s=timeout or UNAVAILABLE_TIMEOUT_S)
    say(f"{store.where} has schema version {REVISION}")
    store.close()
    if config is not None:
        with process_context(config, overrides, name, runs_dir) as context, context.open_data():
            pass  # creates the folders of the run, which commands that only read must not create


@app.command("export")
@on_run(reads=True)
def export_(context: ProcessContext, file: FileArgument) -> None:
    """Write a run's rows, trajectories and screenshots (not its weights) into one archive, also while it runs."""
    from dart_train.data.maintenance.transfer import export_run

    with context.open_data() as manager:
        with waiting_for(f"the archive {file}, which is written"):
            done = export_run(manager, file)
    say(f"{file}: {sum(done.rows.values())} rows, {done.trajectories} trajectories, {done.images} screenshots")


@app.command("import")
@on_run()
def import_(context: ProcessContext, file: FileArgument) -> None:
    """Read an exported archive into a run without rows, which may have another name and database."""
    from dart_train.data.maintenance.transfer import import_run

    with context.open_data() as manager:
        with waiting_for(f"the archive {file}, which is read"):
            done = import_run(manager, file)
    say(f"{file}: {sum(done.rows.values())} rows, {done.trajectories} trajectories, {done.images} screenshots")


data_care_commands.register(app)


def say(text: str) -> None:
    """Print a line for people, in full."""
    Console(soft_wrap=True).print(text, markup=False, highlight=False)
