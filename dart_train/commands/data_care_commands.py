"""Care of a run's data: its status, garbage collection, integrity check, and the experience pool."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.bar import Bar
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dart_gym.commands.json_output import JsonOption, write_json
from dart_gym.utils.shown_text import printable
from dart_gym.utils.waits import waiting_for
from dart_train.commands.options import on_run
from dart_train.core.data_states import Provenance
from dart_train.core.train_errors import DatabaseGoneError, DatabaseRefusedError, DataError

if TYPE_CHECKING:  # the database's packages are imported by the commands, so that `--help` is there without them
    import numpy as np
    from numpy.typing import NDArray

    from dart_agent.episodes.trajectory import Trajectory
    from dart_train.data.insight.status import Held, Status
    from dart_train.data.maintenance.integrity_check import CheckReport
    from dart_train.data.maintenance.retention import Collection
    from dart_train.processes.process_context import ProcessContext

FINDINGS_SHOWN = 30
BAR_WIDTH = 24
DAMAGED = 3
MEGABYTE = 1e6


def register(app: typer.Typer) -> None:
    """Add the commands to those of `dart-train data`."""
    for command in (status, gc, check, pool):
        app.command()(command)


@on_run(reads=True)
def status(
    context: ProcessContext,
    json_file: JsonOption = None,
) -> None:
    """Show queue, incomplete groups, staleness, success by task, pool and dropped data, with a diagnosis."""
    with context.open_data() as data:
        now = data.status()
    shown = {
        "census": now.census.parts(),
        "newest_version": now.newest_version,
        "diagnosis": now.diagnosis,
        "serving": {name: life.version for life in now.versions for name in life.replicas},
        "tasks": list(map(dataclasses.asdict, now.tasks)),
        "pool": list(map(dataclasses.asdict, now.pool)),
        "dropped_groups": dict(now.dropped_groups),
        **now.figures,
    }
    write_json(json_file, shown)
    show_status(now, Console())


def show_status(now: Status, console: Console) -> None:
    """Print a run's status as tables."""
    version = "none yet" if now.newest_version is None else f"v{now.newest_version}"
    console.print(Panel(Text(now.diagnosis), title=f"{now.run_id} · newest weights {version}", title_align="left"))
    console.print(
        Columns(
            [
                _counts("trajectories", _trajectories(now)),
                _counts("groups ready, by task", now.figures["groups_ready_by_task"]),
                _counts("groups in the making", {f"{have} of {want}": n for (have, want), n in now.making.items()}),
                _histogram("versions behind: waiting", now.figures["staleness_waiting"]),
                _histogram("versions behind: trained", now.trained_staleness),
                _counts("trajectories dropped, by rule", now.census.dropped),
                _counts("groups dropped, by rule", now.dropped_groups),
                _counts("decisions", now.decisions),
                _counts("groups on lease", {_holder(held): held.groups for held in now.leases}),
            ],
            padding=(0, 2),
        )
    )
    if now.versions:
        console.print(_versions(now))
    if now.tasks:
        console.print(_tasks(now))
    if now.pool:
        console.print(_pool(now))


def _trajectories(now: Status) -> dict[str, int]:
    return {name: count for name, count in now.census.parts().items() if name != "eligible_groups"}


def _holder(held: Held) -> str:
    return f"{held.holder} ({held.expires_in_s:.0f} s left)"


def _counts(title: str, counts: Mapping[str, int]) -> RenderableType:
    table = Table(title=title, title_justify="left", show_header=False, min_width=len(title) + 2)
    table.add_column()
    table.add_column(justify="right")
    for name, count in counts.items():
        if count:
            table.add_row(Text(name.replace("_", " ")), str(count))
    if not table.row_count:
        table.add_row(Text("none", "dim"), "")
    return table


def _histogram(title: str, counts: Mapping[int, int]) -> RenderableType:
    table = Table(title=title, title_justify="left", show_header=False, min_width=len(title) + 2)
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(width=BAR_WIDTH)
    most = max(counts.values(), default=1)
    for age, count in counts.items():
        table.add_row(str(age), str(count), Bar(most, 0, count, width=BAR_WIDTH, color="cyan"))
    if not counts:
        table.add_row(Text("none", "dim"), "", "")
    return table


def _versions(now: Status) -> Table:
    table = Table(title="versions of the weights", title_justify="left")
    for name in ("version", "published", "files", "served by"):
        table.add_column(name)
    for life in now.versions:
        table.add_row(
            f"v{life.version}",
            "not yet"
            if life.published_at is None
            else f"{datetime.fromtimestamp(life.published_at):%Y-%m-%d %H:%M:%S}",
            "there" if life.retired_at is None else "removed",
            Text(", ".join(life.replicas) or "-"),
        )
    return table


def _tasks(now: Status) -> Table:
    table = Table(title="success by task", title_justify="left")
    table.add_column("task")
    for name in ("rollouts", "success", "steps", "longest success"):
        table.add_column(name, justify="right")
    table.add_column("", width=BAR_WIDTH)
    for item in now.tasks:
        rate = item.success_rate
        table.add_row(
            Text(item.task_id),
            str(item.rollouts),
            "-" if rate is None else f"{rate:.2f}",
            "-" if item.mean_steps is None else f"{item.mean_steps:.1f}",
            "-" if item.longest_success is None else str(item.longest_success),
            Bar(1.0, 0, rate or 0.0, width=BAR_WIDTH, color="green"),
        )
    return table


def _pool(now: Status) -> Table:
    table = Table(title="experience pool", title_justify="left")
    for name in ("task", "from"):
        table.add_column(name)
    for name in ("successes", "groups joined", "importance weight 1"):
        table.add_column(name, justify="right")
    for item in now.pool:
        numbers = (item.trajectories, item.uses, item.without_logprobs)
        table.add_row(Text(item.task_id), item.provenance.value, *map(str, numbers))
    return table


@on_run(reads=True)
def gc(
    context: ProcessContext,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would be done, and do nothing")] = False,
    json_file: JsonOption = None,
) -> None:
    """Remove what crashes left behind and what `data.retention` does not keep."""
    from dart_train.data.maintenance.retention import collect

    with context.open_data() as data, waiting_for("files and rows that may go, which are looked for"):
        result = collect(data, context.config.data.retention, dry_run=dry_run)
    write_json(json_file, {**dataclasses.asdict(result), "dry_run": dry_run})
    show_collection(result, Console(), dry_run=dry_run)


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


@on_run(reads=True)
def check(
    context: ProcessContext,
    quick: Annotated[bool, typer.Option("--quick", help="do not read the pixels of screenshots")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="drop what is damaged, record what has no row")] = False,
    json_file: JsonOption = None,
) -> None:
    """Check that database and files are complete and agree; exit status 3 if they do not."""
    from dart_train.data.maintenance.integrity_check import check_run, unopened

    try:
        with context.open_data() as data, waiting_for("trajectories and screenshots, which are read"):
            report = check_run(data, pixels=not quick, repair=repair)
    except (DatabaseGoneError, DatabaseRefusedError):
        raise  # nothing was checked
    except DataError as error:
        if context.config.data.database_url() is not None:
            raise  # a server's error says nothing about the data of the run
        report = unopened(error, str(context.run.root))
    write_json(json_file, {**dataclasses.asdict(report), "whole": report.whole})
    show_findings(report, Console())
    if not report.whole and not repair:
        raise typer.Exit(DAMAGED)


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


def _written_down(
    context: ProcessContext, trajectory: Trajectory, images: dict[str, NDArray[np.uint8]]
) -> tuple[Trajectory, dict[str, NDArray[np.uint8]]]:
    """Return a trajectory with tokens of the run's model. One that has none is written in the words of that model.

    Raises:
        InvalidTrajectoryError: if it cannot be written in this way.
    """
    from dart_agent.formats import get_format
    from dart_agent.models.image_patches import VisionSpec
    from dart_agent.models.model_tokens import ModelTokens
    from dart_train.rollout.play.written_down import Writer

    if any(step.prompt_ids for step in trajectory.steps):
        return trajectory, images
    model, agent = context.run.checkpoint(0), context.config.agent
    writer = Writer(ModelTokens.load(model), VisionSpec.from_dir(model), get_format(agent.format), agent)
    return writer.write(trajectory, images)


@on_run(reads=True)
def pool(
    context: ProcessContext,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN", help="directory or URL of a run, an evaluation or an import"),
    ] = None,
    provenance: Annotated[Provenance, typer.Option("--as", help="the origin of the episodes")] = Provenance.HINTED,
    hint_marker: Annotated[
        str | None, typer.Option(help="text with which the hint begins in the instruction of hinted episodes")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="import episodes of this task only; may be repeated")] = None,
    json_file: JsonOption = None,
) -> None:
    """Show the content of the experience pool. With --from, import the successes of another run first."""
    from dart_agent.models.model_tokens import ModelTokens
    from dart_train.data.maintenance.pool_import import fill_pool, import_successes, read_successes

    console = Console()
    with context.open_data() as data, waiting_for("the pool, which is filled"):
        fill_pool(data)
        if source is not None:
            tokens = ModelTokens.load(context.run.checkpoint(0)) if hint_marker else None
            report = import_successes(
                data,
                read_successes(source, tasks=task or ()),
                provenance=provenance,
                origin=source,
                encode=tokens.encode if tokens else None,
                write=functools.partial(_written_down, context) if provenance is not Provenance.HINTED else None,
                hint_marker=hint_marker,
            )
            counts = dataclasses.asdict(report)
            problems = counts.pop("problems")
            console.print(_counts(f"from {source}", counts))
            for problem in problems:
                console.print(Text(printable(problem), "yellow"))
        now = data.status()
    write_json(json_file, list(map(dataclasses.asdict, now.pool)))
    console.print(_pool(now) if now.pool else Text("the pool is empty", "dim"))
