"""The tables that show a run's data: its queue, groups, staleness, tasks and experience pool."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.bar import Bar
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # the database's packages are imported by the commands, so that `--help` is there without them
    from dart_train.data.insight.status import Held, Status

BAR_WIDTH = 24


def status_rows(now: Status) -> dict[str, Any]:
    """Return what the tables of a status show, for programs."""
    return {
        "census": now.census.parts(),
        "newest_version": now.newest_version,
        "diagnosis": now.diagnosis,
        "serving": {name: life.version for life in now.versions for name in life.replicas},
        "tasks": list(map(dataclasses.asdict, now.tasks)),
        "pool_by_task": list(map(dataclasses.asdict, now.pool)),
        "dropped_groups": dict(now.dropped_groups),
        **now.figures,
    }


def show_status(now: Status, console: Console) -> None:
    """Print a run's status as tables."""
    version = "none yet" if now.newest_version is None else f"v{now.newest_version}"
    console.print(Panel(Text(now.diagnosis), title=f"{now.run_id} · newest weights {version}", title_align="left"))
    console.print(
        Columns(
            [
                counts_table("trajectories", _trajectories(now)),
                counts_table("groups ready, by task", now.figures["groups_ready_by_task"]),
                counts_table(
                    "groups in the making", {f"{have} of {want}": n for (have, want), n in now.making.items()}
                ),
                _histogram("versions behind: waiting", now.figures["staleness_waiting"]),
                _histogram("versions behind: trained", now.trained_staleness),
                counts_table("trajectories dropped, by rule", now.census.dropped),
                counts_table("groups dropped, by rule", now.dropped_groups),
                counts_table("decisions", now.decisions),
                counts_table("groups on lease", {_holder(held): held.groups for held in now.leases}),
            ],
            padding=(0, 2),
        )
    )
    if now.versions:
        console.print(_versions(now))
    if now.tasks:
        console.print(_tasks(now))
    if now.pool:
        console.print(pool_table(now))


def _trajectories(now: Status) -> dict[str, int]:
    return {name: count for name, count in now.census.parts().items() if name != "eligible_groups"}


def _holder(held: Held) -> str:
    return f"{held.holder} ({held.expires_in_s:.0f} s left)"


def counts_table(title: str, counts: Mapping[str, int]) -> RenderableType:
    """Return a table of counts without those that are 0."""
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


def pool_table(now: Status) -> Table:
    """Return a table of the experience pool."""
    table = Table(title="experience pool", title_justify="left")
    for name in ("task", "from"):
        table.add_column(name)
    for name in ("successes", "groups joined", "importance weight 1"):
        table.add_column(name, justify="right")
    for item in now.pool:
        numbers = (item.trajectories, item.uses, item.without_logprobs)
        table.add_row(Text(item.task_id), item.provenance.value, *map(str, numbers))
    return table
