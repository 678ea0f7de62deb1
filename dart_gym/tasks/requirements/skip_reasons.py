"""Why a task cannot run here: known before anything starts, from its JSON, the download cache and the programs.

Desktops have no network, so a task that needs the live web is skipped; files of the hub come from the cache.
"""

import os
import shutil
from collections.abc import Callable, Container

from dart_gym.desktops.applications.browser import BROWSER_VARIABLE, BROWSERS
from dart_gym.desktops.applications.debian_applications import program_of_package
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.evaluation.getters import GETTERS
from dart_gym.tasks.evaluation.metrics import METRICS
from dart_gym.tasks.requirements import needs, upstream_names
from dart_gym.tasks.setup.download_cache import host_of
from dart_gym.tasks.setup.setup_runner import HANDLERS, UNSUPPORTED

ACCOUNT_GETTERS = frozenset({"googledrive_file"})
LEFT_OUT_METRICS = {"compare_image_text": "needs easyocr, which the evaluator environment leaves out"}

NO_EVALUATOR = "unknown metric: the task has no evaluator"
UNKNOWN_KINDS = frozenset({"unknown step", "unknown metric", "unknown getter", "metric left out"})
"""Kinds of reasons that hold wherever a task runs: we cannot carry it out, or score it."""

PROVIDED = frozenset({"google-chrome", "python", "python3", "pip", "sudo", "su", "apt", "apt-get", "snap"})
"""Programs that the desktop itself brings (shims), whatever the machine has; Chrome needs a browser behind it."""

KNOWN_METRICS = upstream_names.METRICS | METRICS.keys()
KNOWN_GETTERS = upstream_names.GETTERS | GETTERS.keys()

SOLVED_ONLINE = {
    "69acbb55-d945-4927-a87b-8480e1a5bb7e": "clones a repository and installs Python packages",
    "48d05431-6cd5-4e76-82eb-12b60d823f7d": "downloads conda",
    "e1fc0df3-c8b9-4ee7-864c-d0b590d3aa56": "downloads LanguageTool",
    "f8369178-fafe-40c2-adc4-b9b08a125456": "downloads a theme from gnome-look.org",
    "3c8f201a-009d-4bbe-8b65-a6f8b35bb57f": "downloads a picture named in its instruction",
    "94d95f96-9699-4208-98ba-3c3119edf9c2": "installs Spotify",
    "bba3381f-b5eb-4439-bd9e-80c22218d5a7": "plays a stream from the web",
}
"""Tasks whose JSON names no site, but whose solution needs the web."""

OTHER_SYSTEM = {
    "480bcfea-d68f-4aaa-a0a9-2589ef319381": "Chromium has no flag chrome-refresh-2023 any more",
    "5812b315-e7bd-4265-b51f-863c02174c28": "its solution makes a user, and sudo gives a desktop's user no more rights",
    "b6781586-6346-41cd-935a-a6b1487918fc": "timedatectl needs systemd, which does not run in a desktop",
}
"""Tasks that assume another system than Debian 12."""


def skip_reasons(task: Task, cache: Container[str], has_program: Callable[[str], bool]) -> list[str]:
    """Why a task cannot run or be scored here, most fundamental first, each with its kind before a colon."""
    name = str(task.raw.get("id", ""))
    reasons = [*_unknown_parts(task), *_accounts(task)]
    missing = [" or ".join(need) for need in missing_programs(task, has_program)]
    if "code" in missing:
        missing.remove("code")
        reasons.append("VS Code: it is not in Debian")
    reasons += [f"missing program: {programs}" for programs in missing]
    if name in OTHER_SYSTEM:
        reasons.append(f"other system: {OTHER_SYSTEM[name]}")
    reasons += [f"live web: {site}" for site in needs.sites(task)]
    if task.raw.get("proxy") is True:
        reasons.append("live web: the task asks for a proxy")
    reasons += [f"live web: {install}" for install in needs.installs(task)]
    reasons += [f"live web: apt-get install {package}" for package in _foreign_packages(task, has_program)]
    if name in SOLVED_ONLINE:
        reasons.append(f"live web: {SOLVED_ONLINE[name]}")
    absent = {download.url for download in needs.downloads(task) if download.url not in cache}
    if absent:
        hosts = ", ".join(sorted({host_of(url) for url in absent}))
        reasons.append(f"not mirrored: {len(absent)} files of {hosts} are not in the download cache")
    return reasons


def missing_programs(task: Task, has_program: Callable[[str], bool]) -> list[list[str]]:
    """Return which programs a task lacks, sorted; one of each list would do."""
    installed = {program for package in needs.packages(task) if (program := program_of_package(package))}
    wanted = {*needs.programs(task), *(frozenset({program}) for program in installed)}
    return sorted(sorted(need) for need in wanted if not any(map(has_program, need)))


def _foreign_packages(task: Task, has_program: Callable[[str], bool]) -> list[str]:
    """Packages that a set-up installs, that are not among the applications, and whose program is not here either."""
    return [name for name in needs.packages(task) if program_of_package(name) is None and not has_program(name)]


def _unknown_parts(task: Task) -> list[str]:
    kinds = dict.fromkeys(str(step.get("type")) for _, step in needs.steps_of(task))
    reasons = [f"unknown step: {kind}" for kind in kinds if kind not in HANDLERS and kind not in UNSUPPORTED]
    funcs = dict.fromkeys(needs.funcs_of(task))
    reasons += [f"unknown metric: {func}" for func in funcs if func not in KNOWN_METRICS]
    reasons += [f"metric left out: {func} {LEFT_OUT_METRICS[func]}" for func in funcs if func in LEFT_OUT_METRICS]
    getters = dict.fromkeys(str(getter.get("type")) for getter in needs.getters_of(task))
    reasons += [f"unknown getter: {getter}" for getter in getters if getter not in KNOWN_GETTERS]
    return reasons if funcs else [*reasons, NO_EVALUATOR]


def _accounts(task: Task) -> list[str]:
    kinds = dict.fromkeys(str(step.get("type")) for _, step in needs.steps_of(task))
    reasons = [f"account: step {kind} {UNSUPPORTED[kind]}" for kind in kinds if kind in UNSUPPORTED]
    getters = dict.fromkeys(str(getter.get("type")) for getter in needs.getters_of(task))
    return reasons + [f"account: getter {getter} needs Google's" for getter in getters if getter in ACCOUNT_GETTERS]


def kind_of(reason: str) -> str:
    """The kind of a reason: what tables count."""
    return reason.split(":", 1)[0]


def machine_has(program: str) -> bool:
    """Return whether a desktop of profile "osworld" on this machine has a program."""
    if program == "google-chrome":
        named = os.environ.get(BROWSER_VARIABLE)
        return any(shutil.which(name) for name in ((named,) if named else BROWSERS))
    return program in PROVIDED or shutil.which(program) is not None
