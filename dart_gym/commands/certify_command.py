"""`dart-gym certify`: plays each task of a suite with nothing, chance and solutions, and writes what that shows."""

import asyncio
import fnmatch
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dart_gym.certification.attempts import Unit
from dart_gym.certification.certificate import QUARANTINED, badge_of, fault_of, own_badge, page_of, report_of
from dart_gym.certification.certify_run import RECORDS, play_all
from dart_gym.core.errors import UnknownTaskError
from dart_gym.tasks.catalog import registry
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.requirements.place import Place
from dart_gym.utils.durable_files import make_directories, write_file


def certify(
    suite: Annotated[str, typer.Argument(help="A suite's name, or a directory of OSWorld tasks.")],
    repeat: Annotated[int, typer.Option(min=1, help="Seeds, each with all attempts.")] = 5,
    parallel: Annotated[int, typer.Option(min=1, help="Desktops side by side.")] = 1,
    task: Annotated[list[str] | None, typer.Option(help="Only ids like this, * for anything; repeatable.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory of records and reports; certify/SUITE by default.")
    ] = None,
    badge: Annotated[Path | None, typer.Option(help="File of the badge; by default where `list` looks.")] = None,
    deadline: Annotated[float, typer.Option(min=1.0, help="Seconds that a set-up or a step may take.")] = 120.0,
) -> None:
    """Show that a suite's tasks score 0 for nothing and 1 for their solutions, and carry that in a badge.

    A run that was cut off is resumed. With --task the badge keeps what it says of other tasks. The exit
    status is 1 where a task is quarantined.
    """
    tasks, place = _tasks(suite, task or ["*"]), Place.of()
    reasons = {one.id: place.reasons(one) for one in tasks}
    skipped = {name: found for name, found in reasons.items() if found}
    folder, target = out or Path("certify", Path(suite).name.replace(":", "_")), badge or own_badge(suite)
    playable = [one for one in tasks if one.id not in skipped]
    units = asyncio.run(play_all(playable, repeat, parallel, deadline, folder / RECORDS, _say))
    others = badge_of(target)["tasks"] if task and target.is_file() else {}
    report = report_of(suite, units, skipped, importlib.metadata.version("dart-gui"), others)
    text = json.dumps(report, indent=1) + "\n"
    for path, content in ((folder / "report.json", text), (folder / "report.html", page_of(report)), (target, text)):
        make_directories(path.parent)
        write_file(path, content)
    for name, entry in report["tasks"].items():
        if entry["status"] == QUARANTINED:
            print(f"quarantined: {name}: {'; '.join(entry['reasons'])}")
    counts = ", ".join(f"{count} {status}" for status, count in report["counts"].items() if count)
    low, high = report["flake_interval"]
    flakes = f"{report['flakes']} flakes in {report['attempts']} attempts (95 % interval {low:.2%} to {high:.2%})"
    print(f"{suite}: {counts}; {flakes}; {folder / 'report.html'}, badge {target}")
    raise typer.Exit(int(report["counts"][QUARANTINED] > 0))


def _tasks(suite: str, patterns: list[str]) -> list[Task]:
    """Return the tasks of a suite or directory whose ids match.

    Raises:
        UnknownTaskError: if no task matches.
    """
    if Path(suite).is_dir():
        found = list(registry.read_suite(Path(suite)).values())
    else:
        found = [registry.get_task(name) for name in registry.task_ids(suite)]
    chosen = [one for one in found if any(fnmatch.fnmatch(one.id, pattern) for pattern in patterns)]
    if not chosen:
        raise UnknownTaskError(f"no task of {suite} is like {', '.join(patterns)}; see dart-gym tasks list {suite}")
    return chosen


def _say(unit: Unit, done: str) -> None:
    faults = [fault for attempt in unit.attempts if (fault := fault_of(attempt))] + unit.left
    seconds = sum(attempt.seconds for attempt in unit.attempts)
    print(f"[{done}] {unit.task} seed {unit.seed}: {seconds:.0f} s {'; '.join(faults)}", file=sys.stderr, flush=True)
