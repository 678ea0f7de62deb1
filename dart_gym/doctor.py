"""Looks at the machine and says what works, what does not, and what to do about it.

Every check is a function that returns a `Finding`; none changes anything, and none raises.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dart_gym.desktops.browser import browser_program
from dart_gym.desktops.sandbox import check_sandbox
from dart_gym.errors import MissingDependencyError

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


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: `ok`, or a `remedy` that says what to do."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    needed_for: str = "desktops"


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
    needed_for = "the miniwob suite"
    try:
        return Finding("Chromium", True, browser_program(), needed_for=needed_for)
    except MissingDependencyError as error:
        cause, _, remedy = str(error).partition("; next step: ")
        return Finding("Chromium", False, cause, remedy, needed_for)


def check_sandbox_works() -> Finding:
    """Bubblewrap can make user and network namespaces."""
    cause, _, remedy = (check_sandbox() or "").partition("; next step: ")
    return Finding("sandbox", not cause, cause or "bubblewrap works", remedy)


def check_memory() -> Finding:
    """Memory that is free now."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) / 2**20
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


def examine() -> list[Finding]:
    """Run all checks, most basic first."""
    checks: list[Callable[[], Finding]] = [check_python, check_memory, check_disk]
    findings = [check() for check in checks]
    findings += [check_program(program, package) for program, package in PROGRAMS.items()]
    findings += [check_browser(), check_sandbox_works()]
    return findings + [check_package(name) for name in TRAIN_PACKAGES]


def main(console: Console | None = None) -> int:
    """Print the findings; returns 1 if something is missing, else 0."""
    console = console or Console()
    findings = examine()
    table = Table(box=None, pad_edge=False)
    for title in ("", "what", "found", "needed for", "what to do"):
        table.add_column(title)
    for finding in findings:
        mark = Text("ok", "green") if finding.ok else Text("--", "red")
        remedy = "" if finding.ok else finding.remedy
        cells = (finding.name, finding.detail, finding.needed_for, remedy)
        table.add_row(mark, *map(Text, cells))  # plain text: "dart-gui[train]" is no markup
    console.print(table)
    missing = [finding.name for finding in findings if not finding.ok]
    if missing:
        console.print(
            f"\n[red]{len(missing)} missing:[/] {', '.join(missing)}. `make setup` installs what apt and pip can."
        )
        return 1
    console.print("\n[green]This machine is ready.[/] `make quickstart` is the next step.")
    return 0
