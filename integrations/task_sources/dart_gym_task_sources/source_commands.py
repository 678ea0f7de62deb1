"""The commands `dart-gym tasks import` and `stats`, which the group `tasks` takes up where this is installed."""

from __future__ import annotations

from typing import Annotated

import typer

from dart_gym.tasks.catalog.task_index import COLUMNS, TaskIndex


def mount(app: typer.Typer) -> None:
    """Add them to a group."""
    app.command("import")(import_tasks)
    app.command()(stats)


def import_tasks(
    source: Annotated[str, typer.Argument(help="Directory, zip, tar, parquet, URL (hf://...), or suite:NAME.")],
    name: Annotated[str, typer.Option(help="Of the suite.")],
    format_: Annotated[str, typer.Option("--format", help="osworld, cua-gym or a plug-in's; found out without.")] = "",
    only: Annotated[str, typer.Option(help=f"COLUMN=VALUE or !=, with commas; of {', '.join(COLUMNS)}.")] = "",
    licence: Annotated[str, typer.Option(help="Of the tasks; by default what the source's README.md says.")] = "",
    max_steps: Annotated[int | None, typer.Option(min=1, help="Of bundles that name none.")] = None,
    held_out: Annotated[float, typer.Option(min=0, max=1, help="Share that becomes the split test.")] = 0.0,
) -> None:
    """Import tasks once into a suite of this user, and say what was refused."""
    from dart_gym_task_sources.task_import import import_source  # with what it needs, only to import

    index = import_source(
        source, name, format_name=format_, chosen=only, licence=licence, max_steps=max_steps, held_out=held_out
    )
    for task, reason in index.rows("SELECT name, reason FROM problems ORDER BY 1"):
        print(f"{task}: refused: {reason}")
    needy = index.rows("SELECT needs, count(*) FROM tasks WHERE needs != '' GROUP BY 1 ORDER BY 2 DESC")
    for needs, count in needy:
        print(f"{count} tasks need {needs}")
    licences = dict(index.rows("SELECT key, value FROM meta"))["licence"]
    print(f"{name}: {len(index.ids())} tasks, {len(index.ids('needs='))} can run here; licence: {licences}")


def stats(suite: Annotated[str, typer.Argument(help="An imported suite.")]) -> None:
    """Where an imported suite comes from, and how many tasks there are by each column that they are chosen by."""
    index = TaskIndex(suite)
    for key, value in index.rows("SELECT key, value FROM meta"):
        print(f"{key}\t{value}")
    print(f"refused\t{len(index.rows('SELECT 1 FROM problems'))}")
    for column in COLUMNS:
        for value, count in index.rows(f"SELECT {column}, count(*) FROM tasks GROUP BY 1 ORDER BY 2 DESC, 1"):
            print(f"{column}\t{value or '-'}\t{count}")
