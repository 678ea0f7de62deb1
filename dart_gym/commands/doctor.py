"""Looks at the machine and says what works, what does not, and what to do about it.

Every check is a function that returns a `Finding`; none changes anything, and none raises.

Invariants:
    - What nobody asked for is "not requested", not missing: a part of which nothing is installed. Desktops are always
      requested, and so is what `--for` names.
"""

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dart_gym.commands.json_output import write_json
from dart_gym.core.errors import ConfigurationError, MissingDependencyError, TaskError
from dart_gym.core.project_pages import step
from dart_gym.core.suggestions import suggest
from dart_gym.desktops.applications import debian_applications
from dart_gym.desktops.applications.browser import browser_program
from dart_gym.desktops.confinement.resource_limits import NO_GROUPS, group_places
from dart_gym.desktops.sandbox.osworld_profile import desktop_python, python_step
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
DESKTOPS = "desktops"
TRAIN = "train"
OSWORLD = "osworld"
VLLM = "vllm"
PARTS = {
    DESKTOPS: "desktops",
    TRAIN: "training",
    OSWORLD: "OSWorld's tasks",
    VLLM: "engines on GPUs",
}
MIN_MEMORY_GIB = 4.0
MIN_DISK_GIB = 2.0
_SHOWN_CALLS = 20
APT = "apt-get install "


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        remedy: what to do where it is not ok.
        optional: what its part also works without.
        part: of the product that needs it, one of `PARTS`.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    needed_for: str = "desktops"
    optional: bool = False
    part: str = DESKTOPS


def check_program(program: str, package: str) -> Finding:
    """Return whether a program is on the PATH."""
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
    """Return whether what a desktop uses as a whole can be limited by control groups."""
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
    """Return whether a Python package of the extra `train` is there."""
    try:
        return Finding(name, True, version(name), needed_for="training", part=TRAIN)
    except PackageNotFoundError:
        return Finding(name, False, "not installed", "pip install 'dart-gui[train]'", "training", part=TRAIN)


def check_application(application: debian_applications.Application) -> Finding:
    """Return whether an application of OSWorld is on the PATH."""
    path = shutil.which(application.program)
    remedy = f"apt-get install {' '.join(application.packages)}"
    found = path or "not found"
    return Finding(application.name, path is not None, found, remedy, application.needed_for, True, OSWORLD)


def check_desktop_python() -> Finding:
    """Return whether programs on the desktop find pyautogui."""
    path = desktop_python()
    there = (path / "pyautogui").is_dir()
    found = str(path) if there else f"not in {path}"
    return Finding("pyautogui", there, found, python_step(), "every OSWorld task", True, OSWORLD)


def check_evaluator() -> Finding:
    """Return whether OSWorld's metrics are installed in their own environment."""
    name, needed_for = "evaluator", "scores of OSWorld's tasks"
    try:
        return Finding(name, True, str(evaluator_environment.find().root), "", needed_for, True, OSWORLD)
    except MissingDependencyError as error:
        cause = str(error).partition("; next step: ")[0]
        return Finding(name, False, cause, evaluator_environment.COMMAND, needed_for, True, OSWORLD)


def check_vllm() -> Finding:
    """Return whether vLLM is installed in its own environment; the module that knows is of a package above this one."""
    problem = importlib.import_module("dart_agent.engines.vllm.vllm_environment").problem()
    found = problem or "installed"
    return Finding("vLLM", not problem, found, "dart-train engines install", "engines on GPUs", True, VLLM)


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


def requested_parts(findings: Sequence[Finding], asked: Collection[str] = ()) -> set[str]:
    """Return the parts that count: those of `asked`, else desktops and those of which something is installed.

    A browser or an office suite is on many machines: of OSWorld's part only what it alone needs counts.
    """
    if asked:
        return {DESKTOPS, *asked}
    found = {finding.part for finding in findings if finding.ok and finding.part != OSWORLD}
    own = any(finding.ok for finding in findings if finding.name in ("pyautogui", "evaluator"))
    return {DESKTOPS, *found} | ({OSWORLD} if own else set())


def main(
    console: Console | None = None,
    task_set: Path | None = None,
    asked: Collection[str] = (),
    json_file: Path | None = None,
) -> int:
    """Print the findings; returns 1 if something is missing of a requested part that it does not work without, else 0.

    Args:
        console: to print to.
        task_set: a directory of tasks, to say which of them wait for a package.
        asked: parts that are requested even if nothing of them is installed.
        json_file: also gets all findings, those of parts that nobody requested as well.
    """
    console = console or Console()
    if unknown := sorted(set(asked) - PARTS.keys()):
        raise ConfigurationError(f"there is no part {unknown[0]!r}; {suggest(unknown[0], PARTS)}")
    findings = examine()
    requested = requested_parts(findings, asked)
    write_json(json_file, [asdict(finding) | {"requested": finding.part in requested} for finding in findings])
    console.print(_table([finding for finding in findings if finding.ok or finding.part in requested]))
    lacking = [finding for finding in findings if finding.part in requested and not finding.ok]
    missing = [finding for finding in lacking if not finding.optional or finding.part in asked]
    _print_optional(console, [finding for finding in lacking if finding not in missing])
    for part in (part for part in PARTS if part not in requested):
        remedies = dict.fromkeys(finding.remedy for finding in findings if finding.part == part and not finding.ok)
        shown = "; ".join(one for one in remedies if not one.startswith("apt-get")) or "; ".join(remedies)
        console.print(Text(f"not requested: {PARTS[part]} ({shown})", "dim"))
    if task_set is not None:
        _print_waiting(console, task_set)
    if missing:
        names = ", ".join(finding.name for finding in missing)
        console.print(Text(f"\n{len(missing)} missing: {names}. {_next_step(missing)}", "red"))
        return 1
    ready = step("`make quickstart`", "`dart-train init`" if TRAIN in requested else "`dart-agent init`")
    console.print(Text(f"\nThis machine is ready. {ready} is the next step.", "green"))
    return 0


def _table(findings: Sequence[Finding]) -> Table:
    """A row for each finding; without a column of steps where there is nothing to do. Long names go on below."""
    titles = ["", "what", "found", "needed for", *(["what to do"] if any(not one.ok for one in findings) else [])]
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for finding in findings:
        table.add_row(*_row(finding)[: len(titles)])
    return table


def _row(finding: Finding) -> list[Text]:
    """Its cells, as plain text: "dart-gui[train]" is no markup."""
    mark = Text("ok", "green") if finding.ok else Text("--", "yellow" if finding.optional else "red")
    remedy = "" if finding.ok else finding.remedy
    return [mark, *map(Text, (finding.name, finding.detail, finding.needed_for, remedy))]


def _next_step(missing: Sequence[Finding]) -> str:
    """Return what to do about all of them at once."""
    packages = [finding.remedy for finding in missing if finding.remedy.startswith(APT)]
    without_remarks = (remedy.removeprefix(APT).partition(" (")[0] for remedy in packages)
    listed = " ".join(dict.fromkeys(" ".join(without_remarks).split()))
    others = dict.fromkeys(finding.remedy for finding in missing if finding.remedy not in packages)
    steps = "; ".join([*([f"{APT}{listed}"] if listed else []), *others])
    return step("`make setup` installs what apt and pip can.", f"Next step: {steps}")


def _print_optional(console: Console, lacking: Sequence[Finding]) -> None:
    """Print what a requested part also works without."""
    names = [finding.name for finding in lacking if finding.part == OSWORLD]
    if names:
        how = step(
            "`make apps` installs them all.", f"The table says how to install {'it' if len(names) == 1 else 'each'}."
        )
        console.print(Text(f"\nOSWorld's tasks lack {', '.join(names)}. {how}", "yellow"))


def _print_waiting(console: Console, task_set: Path) -> None:
    waiting = waiting_tasks(task_set)
    console.print(
        f"\nTasks in {task_set} that become runnable by a package:" if waiting else "\nNo task waits for a package."
    )
    for packages, task_ids in waiting.items():
        shown = ", ".join(task_ids[:3]) + (", ..." if len(task_ids) > 3 else "")
        console.print(Text(f"  {len(task_ids):>4}  {APT}{packages}   ({shown})"))
