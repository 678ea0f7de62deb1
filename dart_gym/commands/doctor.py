"""Looks at the machine and says what works, what does not, and what to do about it.

Every check is a function that returns a `Finding`; none changes anything, and none raises.
"""

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dart_gym.core.errors import ConfigurationError, MissingDependencyError, TaskError
from dart_gym.desktops.applications import debian_applications
from dart_gym.desktops.applications.browser import browser_program
from dart_gym.desktops.confinement.resource_limits import NO_GROUPS, group_places
from dart_gym.desktops.sandbox.osworld_profile import desktop_python
from dart_gym.desktops.sandbox.sandbox_check import check_sandbox
from dart_gym.desktops.sandbox.sandbox_end import kept_refused
from dart_gym.tasks.catalog.registry import task_from_dict
from dart_gym.tasks.evaluation import evaluator_environment
from dart_gym.tasks.requirements.skip_reasons import machine_has
from dart_gym.tasks.requirements.suite_check import tasks_by_package
from dart_gym.utils.processes import machine_memory

PROGRAMS = {
    "Xvfb": "xvfb",
    "openbox": "openbox",
    "bwrap": "bubblewrap",
    "dbus-daemon": "dbus",
    "zenity": "zenity",
    "mousepad": "mousepad",
    "xdotool": "xdotool",
    "xkbcomp": "x11-xkb-utils",
}
"""Program: the Debian package that has it."""

TRAIN_PACKAGES = ("torch", "transformers", "accelerate", "sqlalchemy", "tensorboard", "matplotlib")
MIN_MEMORY_GIB = 4.0
MIN_DISK_GIB = 2.0
_SHOWN_CALLS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: `ok`, or a `remedy`; `optional` is what the quick start does without."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    needed_for: str = "desktops"
    optional: bool = False


def check_program(program: str, package: str) -> Finding:
    """Whether a program is on the PATH."""
    path = shutil.which(program)
    return Finding(program, path is not None, path or "not found", f"apt-get install {package}")


def check_python() -> Finding:
    """Python 3.11 or newer."""
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding("Python", sys.version_info >= (3, 11), found, "install Python 3.11 or newer", "everything")


def check_browser() -> Finding:
    """A Chromium that can start in a sandbox."""
    needed_for = "the miniwob suite, chrome tasks"
    try:
        return Finding("Chromium", True, browser_program(), needed_for=needed_for)
    except MissingDependencyError as error:
        cause, _, remedy = str(error).partition("; next step: ")
        return Finding("Chromium", False, cause, remedy, needed_for)


def check_sandbox_works() -> Finding:
    """Bubblewrap can make user and network namespaces."""
    cause, _, remedy = (check_sandbox() or "").partition("; next step: ")
    return Finding("sandbox", not cause, cause or "bubblewrap works", remedy)


def check_limits() -> Finding:
    """Whether what a desktop uses as a whole can be limited by control groups."""
    places = group_places()
    if places:
        return Finding("limits", True, f"control groups of version {2 if len(places) == 1 else 1}")
    detail, _, remedy = NO_GROUPS.partition("; next step: ")
    return Finding("limits", False, detail, remedy, "exact limits of desktops", True)


def check_refused() -> Finding:
    """Which system calls applications asked for on desktops and were refused."""
    calls = kept_refused()
    detail = f"refused so far: {', '.join(calls[-_SHOWN_CALLS:])}" if calls else "none refused so far"
    remedy = "an application that fails for it runs with --isolation none only: report it"
    return Finding("system calls", not calls, detail, remedy, "applications that ask for these", True)


def check_memory() -> Finding:
    """Memory that is free now."""
    free = machine_memory()[0] / 2**30
    return Finding("memory", free >= MIN_MEMORY_GIB, f"{free:.1f} GiB free", f"{MIN_MEMORY_GIB:.0f} GiB are needed")


def check_disk() -> Finding:
    """Disk space where the runs go."""
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    remedy = f"a run needs {MIN_DISK_GIB:.0f} GiB"
    return Finding("disk", free >= MIN_DISK_GIB, f"{free:.1f} GiB free", remedy, "training")


def check_package(name: str) -> Finding:
    """Whether a Python package of the extra `train` is there."""
    try:
        return Finding(name, True, version(name), needed_for="training")
    except PackageNotFoundError:
        return Finding(name, False, "not installed", "pip install 'dart-gui[train]'", "training")


def check_application(application: debian_applications.Application) -> Finding:
    """Whether an application of OSWorld is on the PATH."""
    path = shutil.which(application.program)
    remedy = f"apt-get install {' '.join(application.packages)}"
    return Finding(application.name, path is not None, path or "not found", remedy, application.needed_for, True)


def check_desktop_python() -> Finding:
    """Whether programs on the desktop find pyautogui."""
    path = desktop_python()
    there = (path / "pyautogui").is_dir()
    found = str(path) if there else f"not in {path}"
    return Finding("pyautogui", there, found, "make apps", "every OSWorld task", True)


def check_evaluator() -> Finding:
    """Whether OSWorld's metrics are installed in their own environment."""
    name, needed_for = "evaluator", "scores of OSWorld's tasks"
    try:
        return Finding(name, True, str(evaluator_environment.find().root), "", needed_for, True)
    except MissingDependencyError as error:
        cause = str(error).partition("; next step: ")[0]
        return Finding(name, False, cause, evaluator_environment.COMMAND, needed_for, True)


def check_vllm() -> Finding:
    """Whether vLLM is installed in its own environment; the module that knows is of a package above this one."""
    problem = importlib.import_module("dart_agent.engines.vllm.vllm_environment").problem()
    return Finding("vLLM", not problem, problem or "installed", "dart-train engines install", "engines on GPUs", True)


def waiting_tasks(directory: Path) -> dict[str, list[str]]:
    """Return which tasks of a directory of OSWorld's JSON files wait for which Debian packages.

    Raises:
        ConfigurationError: it holds no tasks, or a file that cannot be read.
    """
    tasks = []
    for file in sorted(directory.glob("**/*.json")):
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(raw, dict) and isinstance(raw.get("id"), str) and "instruction" in raw:
                tasks.append(task_from_dict(raw))
        except (OSError, ValueError, TaskError) as error:
            raise ConfigurationError(f"cannot read {file}: {error}") from error
    if not tasks:
        raise ConfigurationError(f"there are no OSWorld tasks (JSON files) in {directory}; give the directory of a set")
    return tasks_by_package(tasks, machine_has)


def examine() -> list[Finding]:
    """Run all checks, most basic first."""
    checks: list[Callable[[], Finding]] = [check_python, check_memory, check_disk]
    findings = [check() for check in checks]
    findings += [check_program(program, package) for program, package in PROGRAMS.items()]
    findings += [check_browser(), check_sandbox_works(), check_limits(), check_refused()]
    findings += [check_package(name) for name in TRAIN_PACKAGES]
    browser = debian_applications.application_of("chromium")  # has a check of its own
    wanted = [
        application
        for application in debian_applications.APPLICATIONS
        if application.program and application != browser
    ]
    findings += [check_application(application) for application in wanted]
    return [*findings, check_desktop_python(), check_evaluator(), check_vllm()]


def main(console: Console | None = None, task_set: Path | None = None) -> int:
    """Print the findings; returns 1 if something is missing that the quick start needs, else 0."""
    console = console or Console()
    findings = examine()
    table = Table(box=None, pad_edge=False)
    for title in ("", "what", "found", "needed for", "what to do"):
        table.add_column(title)
    for finding in findings:
        mark = Text("ok", "green") if finding.ok else Text("--", "yellow" if finding.optional else "red")
        remedy = "" if finding.ok else finding.remedy
        cells = (finding.name, finding.detail, finding.needed_for, remedy)
        table.add_row(mark, *map(Text, cells))  # plain text: "dart-gui[train]" is no markup
    console.print(table)
    _print_applications(console, findings, task_set)
    missing = [finding.name for finding in findings if not (finding.ok or finding.optional)]
    if missing:
        console.print(
            f"\n[red]{len(missing)} missing:[/] {', '.join(missing)}. `make setup` installs what apt and pip can."
        )
        return 1
    console.print("\n[green]This machine is ready.[/] `make quickstart` is the next step.")
    return 0


def _print_applications(console: Console, findings: list[Finding], task_set: Path | None) -> None:
    lacking = [finding.name for finding in findings if finding.optional and not finding.ok]
    missing = [name for name in lacking if name not in ("limits", "system calls", "vLLM")]  # which it has not
    if missing:
        console.print(f"\n[yellow]OSWorld's tasks lack[/] {', '.join(missing)}. `make apps` installs them all.")
    if task_set is None:
        return
    waiting = waiting_tasks(task_set)
    console.print(
        f"\nTasks in {task_set} that become runnable by a package:" if waiting else "\nNo task waits for a package."
    )
    for packages, task_ids in waiting.items():
        shown = ", ".join(task_ids[:3]) + (", ..." if len(task_ids) > 3 else "")
        console.print(Text(f"  {len(task_ids):>4}  apt-get install {packages}   ({shown})"))
