"""The commands `dart-gym tasks ...`: list, check, mirror, import, new."""

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dart_gym.certification.certificate import is_certified, read_badge
from dart_gym.commands.json_output import JsonOption, write_json
from dart_gym.commands.packaged_commands import mount_package
from dart_gym.core.errors import ConfigurationError, TaskError
from dart_gym.tasks.catalog import registry
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.catalog.task_index import TaskIndex, imported_suites
from dart_gym.tasks.requirements.mirror import mirror as fill
from dart_gym.tasks.requirements.mirror import wanted
from dart_gym.tasks.requirements.skip_reasons import machine_has, skip_reasons
from dart_gym.tasks.requirements.solved_coverage import coverage as solved_rows
from dart_gym.tasks.requirements.solved_coverage import table, write_table
from dart_gym.tasks.requirements.suite_check import check_suite, print_check, unnamed_parts
from dart_gym.tasks.setup.download_cache import DOWNLOAD_TIMEOUT_S, DownloadCache

app = typer.Typer(
    help="List tasks, look at them, check whether they run here, fetch their files, write new ones.",
    no_args_is_help=True,
)

CacheOption = Annotated[
    Path | None, typer.Option("--cache", help="Download cache; by default DART_GYM_CACHE or the user's own.")
]


@app.command("list")
def list_tasks(
    suite: Annotated[
        str | None,
        typer.Argument(
            metavar="[SUITE|TASK]",
            help="A suite's name, such as cua or cua[split=test], a directory of OSWorld tasks, or one task: an id, or "
            "the file of an OSWorld task.",
        ),
    ] = None,
    certified: Annotated[
        bool, typer.Option("--certified", help="Only those that a badge certifies as they are now (dart-gym certify).")
    ] = False,
    cache: CacheOption = None,
    json_file: JsonOption = None,
) -> None:
    """Print the ids of tasks, one a line; of a directory also domain and instruction; of one task its JSON.

    What keeps that task from running here goes to the error output.
    """
    if suite is not None and _is_task(suite):
        if certified:
            raise ConfigurationError(f"--certified lists tasks of a suite, and {suite} is one task: leave it out")
        _show(suite, cache, json_file)
        return
    if cache is not None:
        raise ConfigurationError("--cache is where the files of one task are looked for: name a task")
    if suite is None or not Path(suite).is_dir():
        rows: list[dict[str, str]] = []
        for name in registry.suites() if suite is None and not certified else [suite]:
            try:
                found = list(_certified_ids(suite) if certified else registry.task_ids(name))
                rows += [{"id": task_id} for task_id in found]
                sys.stdout.writelines(f"{task_id}\n" for task_id in found)
            except ConfigurationError as error:
                if suite is not None:
                    raise
                print(f"{name}: {error}", file=sys.stderr)  # the others go on
        write_json(json_file, rows)
        return
    badge = read_badge(suite) if certified else None
    listed = [
        (f"{path.parent.name}/{task.raw['id']}", " ".join(task.instruction.split()))
        for path, task in registry.read_suite(Path(suite)).items()
        if badge is None or is_certified(badge, task)
    ]
    write_json(json_file, [{"id": name, "instruction": instruction} for name, instruction in listed])
    sys.stdout.writelines(f"{name}\t{instruction}\n" for name, instruction in listed)


@app.command()
def check(
    directory: Annotated[Path, typer.Argument(help="Of OSWorld tasks (evaluation_examples), or an imported suite.")],
    cache: CacheOption = None,
    parts: Annotated[bool, typer.Option("--parts", help="Also list every step, getter and metric.")] = False,
    reasons: Annotated[bool, typer.Option("--reasons", help="Also print each skipped task's reasons.")] = False,
    solved: Annotated[
        bool, typer.Option("--solved", help="Print instead which metrics, getters and postconfigs a solved task holds.")
    ] = False,
    pairs: Annotated[
        list[str] | None, typer.Option(help="With --solved: also solved tasks of this suite or directory; repeatable.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="With --solved: put the table into this page, between its marks.")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Parse all tasks and say which run here, and why the others do not.

    With --solved: which metrics, getters and postconfig steps are in a task whose solution is known. Such a task can be
    played solved, which must score 1, and unsolved, which must score 0: dart-gym certify does it.
    """
    if solved:
        _coverage(directory, pairs or (), write, json_file)
        return
    if pairs or write is not None:
        raise ConfigurationError("--pairs and --write belong to --solved")
    if str(directory) in imported_suites():
        index = TaskIndex(str(directory))
        needs = "SELECT name || ': needs ' || needs FROM tasks WHERE needs != ''"
        said = index.rows(f"{needs} UNION SELECT name || ': ' || reason FROM problems")
        write_json(json_file, {"runnable": index.ids("needs="), "skipped": [line for (line,) in said]})
        print(f"{len(index.ids('needs='))} tasks can run here, {len(said)} cannot")
        sys.stdout.writelines(f"{line}\n" for (line,) in said if reasons)
        return
    checked = check_suite(directory, _cache(cache), machine_has)
    unnamed = unnamed_parts(checked)
    if unnamed:
        raise TaskError(f"neither supported nor named in a reason to skip: {', '.join(unnamed)}")
    rows = [{"id": item.task.raw["id"], "domain": item.domain, "reasons": item.reasons} for item in checked]
    write_json(json_file, rows)
    print_check(checked, Console(width=None if sys.stdout.isatty() else 160), parts=parts)
    if reasons:
        for item in checked:
            if item.reasons:
                print(f"{item.domain}/{item.task.raw['id']}: {'; '.join(item.reasons)}")


def _coverage(directory: Path, pairs: Iterable[str], write: Path | None, json_file: Path | None) -> None:
    """Print which metrics, getters and postconfig steps of tasks are in a task whose solution is known."""
    tasks = registry.read_suite(directory)
    named = {f"{task.suite}/{task.raw['id'][:8]}": task for task in tasks.values()}
    for name in pairs:
        more = registry.read_suite(Path(name)).values() if Path(name).is_dir() else _tasks_of(name)
        named |= {task.id.rpartition(":")[2]: task for task in more}
    rows = solved_rows(tasks.values(), named)
    write_json(json_file, list(map(asdict, rows)))
    text = table(rows)
    if write is not None:
        write_table(write, text)
    print(text)


@app.command()
def mirror(
    directory: Annotated[Path, typer.Argument(help="Of OSWorld tasks (evaluation_examples).")],
    cache: CacheOption = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A copy of the hub's data set, or a cache directory of OSWorld, to import from."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Import only, download nothing.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one file.")] = DOWNLOAD_TIMEOUT_S,
    json_file: JsonOption = None,
) -> None:
    """Fetch all files that the tasks need, so that they run offline from the cache. May be repeated."""
    if source is not None and not source.is_dir():
        raise TaskError(f"--from {source} is no directory")
    tasks = registry.read_suite(directory).values()
    target = replace(_cache(cache), offline=offline)
    total, seen = len(wanted(tasks)), 0

    def report(url: str, outcome: str) -> None:
        nonlocal seen
        seen += 1
        if outcome != "present":
            said = outcome if outcome.startswith(url) else f"{url}: {outcome}"  # errors name it
            print(f"[{seen}/{total}] {said}", file=sys.stderr)

    done = asyncio.run(fill(tasks, target, source, report, timeout))
    write_json(json_file, asdict(done))
    print(
        f"{total} files: {len(done.present)} present, {len(done.imported)} imported, "
        f"{len(done.downloaded)} downloaded, {len(done.failed)} missing; cache {target.directory}"
    )
    if done.failed:
        raise typer.Exit(1)


def _is_task(name: str) -> bool:
    """Return whether a name is an id or a file of one task, and neither a suite nor a directory."""
    if name.endswith(".json") and not Path(name).is_dir():
        return True
    first, slash, _ = name.partition("/")
    is_path = first in ("", ".", "..", "~") or Path(name).is_dir()
    return bool(slash) and not is_path and not registry.is_suite(name)


def _show(name: str, cache: Path | None, json_file: Path | None) -> None:
    """Print a task's JSON, and what keeps it from running here to the error output."""
    found = registry.get_task(name)
    raw = found.raw or {"id": found.id, "instruction": found.instruction}
    write_json(json_file, raw)
    print(json.dumps(raw, indent=2, ensure_ascii=False))
    if found.suite == "osworld":
        for reason in skip_reasons(found, _cache(cache), machine_has):
            print(f"skipped: {reason}", file=sys.stderr)


def _tasks_of(suite: str) -> list[Task]:
    return [registry.get_task(name) for name in registry.task_ids(suite)]


def _certified_ids(suite: str | None) -> Iterator[str]:
    """Ids of tasks that badges certify, of one suite, or of all that carry one; the others are named."""
    for name in registry.suites() if suite is None else [suite]:
        tasks = _tasks_of(name)
        try:
            badge = read_badge(name)
        except ConfigurationError as error:
            if suite is not None:
                raise
            if tasks:
                print(f"left out: {error}", file=sys.stderr)
            continue
        yield from (task.id for task in tasks if is_certified(badge, task))


def _cache(directory: Path | None) -> DownloadCache:
    default = DownloadCache.default()
    return default if directory is None else replace(default, directory=directory)


mount_package(app, "tasks", ("import",), "dart_gym_task_sources.source_commands", "task_sources")
mount_package(app, "tasks", ("new",), "dart_gym_task_generator.new_task", "task_generator")
