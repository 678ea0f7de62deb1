"""`dart-train data check`: whether a run's data is whole, its repair, its cleaning, and the schema of its database."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dart_gym.commands.json_output import JsonOption, write_json
from dart_gym.utils.shown_text import printable
from dart_gym.utils.waits import waiting_for
from dart_train.commands.options import (
    DEFAULT_RUNS_DIR,
    Name,
    OptionalConfigPath,
    Overrides,
    RunsDir,
    Timeout,
    process_context,
)
from dart_train.config.run_config import ConfigError
from dart_train.core.train_errors import DatabaseGoneError, DatabaseRefusedError, DataError

if TYPE_CHECKING:  # the database's packages are imported by the commands, so that `--help` is there without them
    from dart_train.data.maintenance.integrity_check import CheckReport
    from dart_train.data.maintenance.retention import Collection
    from dart_train.data.manager.data_manager import DataManager
    from dart_train.processes.process_context import ProcessContext

FINDINGS_SHOWN = 30
DAMAGED = 3
MEGABYTE = 1e6
URL_VARIABLE = "DART_DATA_URL"


def check(
    config: OptionalConfigPath = None,
    quick: Annotated[bool, typer.Option("--quick", help="do not read the pixels of screenshots")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="drop what is damaged, record what has no row")] = False,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean",
            help="also remove what crashes left behind and what `data.retention` does not keep; after --repair",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="with --clean: print what would be removed, and remove nothing")
    ] = False,
    migrate: Annotated[
        bool,
        typer.Option(
            "--migrate", help="first create the run and its tables, or upgrade the schema of an older database"
        ),
    ] = False,
    url: Annotated[
        str | None, typer.Option(help=f"with --migrate and without CONFIG: the database; or set {URL_VARIABLE}")
    ] = None,
    overrides: Overrides = None,
    name: Name = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    timeout: Timeout = None,
    json_file: JsonOption = None,
) -> None:
    """Check that database and files are complete and agree; exit status 3 if they do not.

    --clean clears the data away that is not needed. --migrate prepares a database, also one that no run uses yet.
    """
    if dry_run and not clean:
        raise ConfigError("--dry-run says what --clean would remove: give --clean as well")
    if url is not None and not (migrate and config is None):
        raise ConfigError("--url names a database for --migrate where no CONFIG does: name a configuration or --url")
    if config is None and not migrate:
        raise ConfigError("name the configuration of a run; without one, only --migrate is possible")
    if config is None:
        if quick or repair or clean or json_file is not None:
            raise ConfigError("a database alone is only migrated: name the configuration of a run to check its data")
        url = url or os.environ.get(URL_VARIABLE)
        if not url:
            raise ConfigError(f"which database? name a configuration, --url, or set the variable {URL_VARIABLE}")
        _migrate(url, timeout)
        return
    where: dict[str, Any] = {"overrides": overrides, "name": name, "runs_dir": runs_dir, "timeout": timeout}
    if migrate:
        with process_context(config, **where) as context:
            _migrate(context.database_url(), timeout)
            context.open_data().close()  # creates the folders of the run, which a check must not create
    with process_context(config, **where, reads=True) as context:
        _check(context, quick=quick, repair=repair, clean=clean, dry_run=dry_run, json_file=json_file)


def _migrate(url: str, timeout_s: float | None) -> None:
    """Create the tables in an empty database, or upgrade an older schema."""
    from dart_train.data.store.schema import REVISION
    from dart_train.data.store.sql_store import UNAVAILABLE_TIMEOUT_S, Store

    store = Store(url, upgrade=True, unavailable_timeout_s=timeout_s or UNAVAILABLE_TIMEOUT_S)
    text = f"{store.where} has schema version {REVISION}"
    store.close()
    Console(soft_wrap=True).print(text, markup=False, highlight=False)


def _check(
    context: ProcessContext, *, quick: bool, repair: bool, clean: bool, dry_run: bool, json_file: Path | None
) -> None:
    from dart_train.data.maintenance.integrity_check import check_run, unopened

    result: Collection | None = None
    try:
        with context.open_data() as data:
            if clean and not repair:
                result = _clean(context, data, dry_run)
            with waiting_for("trajectories and screenshots, which are read"):
                report = check_run(data, pixels=not quick, repair=repair)
            if clean and repair:  # a trajectory that cannot be read keeps all screenshots until it is given up
                result = _clean(context, data, dry_run)
    except (DatabaseGoneError, DatabaseRefusedError):
        raise  # nothing was checked
    except DataError as error:
        if context.config.data.database_url() is not None:
            raise  # a server's error says nothing about the data of the run
        report = unopened(error, str(context.run.root))
    cleaned = {} if result is None else {"cleaned": {**dataclasses.asdict(result), "dry_run": dry_run}}
    write_json(json_file, {**dataclasses.asdict(report), "whole": report.whole, **cleaned})
    if result is not None:
        show_collection(result, Console(), dry_run=dry_run)
    show_findings(report, Console())
    if not report.whole and not repair:
        raise typer.Exit(DAMAGED)


def _clean(context: ProcessContext, data: DataManager, dry_run: bool) -> Collection:
    from dart_train.data.maintenance.retention import collect

    with waiting_for("files and rows that may go, which are looked for"):
        return collect(data, context.config.data.retention, dry_run=dry_run)


def show_collection(result: Collection, console: Console, *, dry_run: bool = False) -> None:
    """Print what a collection did."""
    table = Table(title="would be done" if dry_run else "done", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for label, count in (
        ("temporary files of killed processes removed", result.leftovers),
        ("complete trajectories without a row recorded", result.adopted),
        ("unreadable files without a row removed", result.unreadable),
        ("files of an interrupted collection removed", result.half_removed),
        ("trajectories removed by age or size", result.removed),
        ("screenshots that nothing shows removed", result.images),
        ("screenshots re-encoded as WebP", result.reencoded),
    ):
        table.add_row(label, str(count))
    table.add_row("freed", f"{result.freed_bytes / MEGABYTE:.1f} MB")
    table.add_row("kept", f"{result.kept_bytes / MEGABYTE:.1f} MB")
    console.print(table)
    for problem in result.problems:
        console.print(Text(problem, "yellow"))


def show_findings(report: CheckReport, console: Console) -> None:
    """Print what a check found."""
    from dart_train.data.maintenance.integrity_check import HARMLESS

    if report.findings:
        table = Table(title="findings", title_justify="left")
        for title in ("problem", "where", "detail"):
            table.add_column(title, overflow="fold")
        for finding in report.findings[:FINDINGS_SHOWN]:
            style = "yellow" if finding.problem in HARMLESS else "red"
            table.add_row(
                Text(finding.problem.value, style), Text(printable(finding.where)), Text(printable(finding.detail))
            )
        console.print(table)
        if len(report.findings) > FINDINGS_SHOWN:
            console.print(f"... and {len(report.findings) - FINDINGS_SHOWN} more")
    count = len(report.findings)
    verdict = "whole" if report.whole else f"{count} finding{'s' if count != 1 else ''}"
    mended = f", {report.repaired} repaired" if report.repaired else ""
    step = "" if report.whole or report.repaired else "; --repair gives up what is damaged"
    console.print(
        f"{report.trajectories} trajectories and {report.images} screenshots looked at: {verdict}{mended}{step}"
    )
