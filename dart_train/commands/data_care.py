"""Care of a run's data: how it stands, what may be cleared away, whether it is whole, and the experience pool."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.bar import Bar
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dart_agent.tokens import ModelTokens
from dart_train.commands.context import ModuleContext
from dart_train.data.check import HARMLESS, CheckReport, check_run
from dart_train.data.pool_import import ImportReport, fill_pool, import_successes, read_successes
from dart_train.data.retention import Collection, collect
from dart_train.data.schema import Provenance
from dart_train.data.status import Held, Status
from dart_train.errors import CorruptDataError

FINDINGS_SHOWN = 30
BAR_WIDTH = 24
MEGABYTE = 1e6


def status(context: ModuleContext, console: Console, *, as_json: bool = False) -> None:
    """Show queue, groups in the making, staleness, success by task, pool and what was dropped."""
    with context.open_data() as data:
        now = data.status()
    if as_json:
        figures = {"census": now.census.parts(), "newest_version": now.newest_version, **now.figures(), "why": now.why}
        console.print_json(json.dumps(figures))
        return
    show_status(now, console)


def show_status(now: Status, console: Console) -> None:
    """Print a run's status as tables."""
    version = "none yet" if now.newest_version is None else f"v{now.newest_version}"
    console.print(Panel(Text(now.why), title=f"{now.run_id} · newest weights {version}", title_align="left"))
    console.print(
        Columns(
            [
                _counts("trajectories", _trajectories(now)),
                _counts("groups ready, by task", now.ready_by_task),
                _counts("groups in the making", {f"{have} of {want}": n for (have, want), n in now.making.items()}),
                _histogram("versions behind: waiting", now.waiting_staleness),
                _histogram("versions behind: trained", now.trained_staleness),
                _counts("trajectories dropped, by rule", now.dropped),
                _counts("groups dropped, by rule", now.dropped_groups),
                _counts("decisions", now.decisions),
                _counts("groups on lease", {_holder(held): held.groups for held in now.leases}),
            ],
            padding=(0, 2),
        )
    )
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


def gc(context: ModuleContext, console: Console, *, dry_run: bool = False) -> Collection:
    """Clear away what crashes left and what retention gives up."""
    with context.open_data() as data:
        result = collect(data, context.config.data.retention, dry_run=dry_run)
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
    return result


def check(context: ModuleContext, console: Console, *, pixels: bool = True, repair: bool = False) -> CheckReport:
    """See whether database and files are whole and agree.

    Raises:
        CorruptDataError: they do not, and were not to be repaired.
    """
    with context.open_data() as data:
        report = check_run(data, pixels=pixels, repair=repair)
        where = data.files.storage.where
    show_findings(report, console)
    if not report.whole and not repair:
        kinds = ", ".join(f"{count} {problem}" for problem, count in report.counts().items())
        raise CorruptDataError(where, f"{kinds}; `dart-train data check --repair` gives up what cannot be mended")
    return report


def show_findings(report: CheckReport, console: Console) -> None:
    """Print what a check found."""
    if report.findings:
        table = Table(title="findings", title_justify="left")
        for name in ("problem", "where", "detail"):
            table.add_column(name, overflow="fold")
        for finding in report.findings[:FINDINGS_SHOWN]:
            style = "yellow" if finding.problem in HARMLESS else "red"
            table.add_row(Text(finding.problem.value, style), Text(finding.where), Text(finding.detail))
        console.print(table)
        if len(report.findings) > FINDINGS_SHOWN:
            console.print(f"... and {len(report.findings) - FINDINGS_SHOWN} more")
    verdict = "whole" if report.whole else f"{len(report.findings)} findings"
    mended = f", {report.repaired} repaired" if report.repaired else ""
    console.print(f"{report.trajectories} trajectories and {report.images} screenshots looked at: {verdict}{mended}")


def pool(
    context: ModuleContext,
    console: Console,
    *,
    source: Path | None = None,
    provenance: Provenance = Provenance.HINTED,
    hint_marker: str | None = None,
    tasks: Iterable[str] = (),
) -> ImportReport | None:
    """Import successes of another run into the pool, and show what it holds."""
    report = None
    with context.open_data() as data:
        fill_pool(data)
        if source is not None:
            tokens = ModelTokens.load(context.run.checkpoint(0)) if hint_marker else None
            found = read_successes(source, tasks=tuple(tasks))
            report = import_successes(
                data,
                found,
                provenance=provenance,
                origin=str(source),
                encode=tokens.encode if tokens else None,
                hint_marker=hint_marker,
            )
            counts = dataclasses.asdict(report)
            problems = counts.pop("problems")
            console.print(_counts(f"from {source}", counts))
            for problem in problems:
                console.print(Text(problem, "yellow"))
        now = data.status()
    console.print(_pool(now) if now.pool else Text("the pool is empty", "dim"))
    return report
