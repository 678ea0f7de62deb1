"""What a task needs besides a desktop: files of the web, live sites, programs. Pure functions of its JSON."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.requirements.shell_programs import NOTHING, Commands, Needs, of_script, of_words
from dart_gym.tasks.setup.chrome_steps import HISTORY_URL
from dart_gym.tasks.setup.live_web import web_host
from dart_gym.tasks.setup.setup_step import is_shell

_COMMANDS = ("launch", "execute", "command", "execute_with_verification", "run_script")
"""Steps that run a program."""
_APPS = {
    "chrome": "google-chrome",
    "gimp": "gimp",
    "thunderbird": "thunderbird",
    "vlc": "vlc",
    "vscode": "code",
    "vs_code": "code",
    "libreoffice": "libreoffice",
    "libreoffice_calc": "libreoffice",
    "libreoffice_writer": "libreoffice",
    "libreoffice_impress": "libreoffice",
    "calc": "libreoffice",
    "writer": "libreoffice",
    "impress": "libreoffice",
    "terminal": "gnome-terminal",
}
_NAMES = {
    "google-chrome": ("chrome", "browser"),
    "gimp": ("gimp", "gnu image"),
    "thunderbird": ("thunderbird",),
    "vlc": ("vlc",),
    "code": ("vscode", "vs code", "visual studio code"),
    "libreoffice": ("libreoffice", "calc", "impress"),
    "gnome-terminal": ("terminal",),
}
"""How instructions call the programs."""
_FILES_OF = {
    "libreoffice": (".xlsx", ".xls", ".ods", ".docx", ".doc", ".odt", ".pptx", ".ppt", ".odp"),
    "gimp": (".xcf",),
}
_GETTERS_OF = {
    "vscode": "code",
    "gimp": "gimp",
    "vlc": "vlc",
    "find_installed_extension_name": "google-chrome",
    "bookmarks": "google-chrome",
    "chrome": "google-chrome",
    "open_tabs_info": "google-chrome",
    "active_tab": "google-chrome",
}
"""Beginnings of the names of getters, and the program whose state they read."""


@dataclass(frozen=True, slots=True)
class Download:
    """A file of the web: its name where it goes, and the stage "config", "postconfig" or "evaluator"."""

    url: str
    name: str
    stage: str


def steps_of(task: Task) -> list[tuple[str, dict[str, Any]]]:
    """All set-up steps with their stage: "config", then "postconfig"."""
    post = task.evaluator.get("postconfig") or []
    return [("config", step) for step in task.config] + [("postconfig", step) for step in post]


def getters_of(task: Task) -> list[dict[str, Any]]:
    """All configurations of getters, results first."""
    found = []
    for key in ("result", "expected"):
        value = task.evaluator.get(key)
        found += [item for item in (value if isinstance(value, list) else [value]) if item and isinstance(item, dict)]
    return found


def funcs_of(task: Task) -> list[str]:
    """Names of all metrics."""
    func = task.evaluator.get("func")
    return [str(name) for name in (func if isinstance(func, list) else [func]) if name]


def downloads(task: Task) -> list[Download]:
    """All files that a task's set-up and evaluation download, each URL once per stage and name."""
    found: dict[Download, None] = {}
    for stage, step in steps_of(task):
        parameters = step.get("parameters") or {}
        if step.get("type") == "download":
            for entry in parameters.get("files") or []:
                found[Download(str(entry.get("url")), str(entry.get("path")), stage)] = None
        elif step.get("type") == "update_browse_history":
            found[Download(HISTORY_URL, "history_empty.sqlite", stage)] = None
    for getter in getters_of(task):
        if getter.get("type") == "cloud_file":
            for url, name in zip(_listed(getter.get("path")), _listed(getter.get("dest")), strict=False):
                found[Download(url, name, "evaluator")] = None
    return list(found)


def _listed(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def sites(task: Task) -> list[str]:
    """Hosts of the live web that a task's set-up or evaluation visits, sorted."""
    urls: list[str] = []
    for _, step in steps_of(task):
        if step.get("type") == "chrome_open_tabs":
            urls += _listed((step.get("parameters") or {}).get("urls_to_open") or [])
    for getter in getters_of(task):
        if getter.get("type") in ("pdf_from_url", "info_from_website"):
            urls += _listed(getter.get("path") or getter.get("url"))
        elif getter.get("type") == "gotoRecreationPage_and_get_html_content":
            urls.append("https://www.recreation.gov/")
    return sorted({host for url in urls if (host := web_host(url))})


def installs(task: Task) -> list[str]:
    """Python and VS Code packages that a task's set-up installs from the network, sorted."""
    found = set()
    for name, *words in _calls(task):
        if name.startswith("python") and words[:2] == ["-m", "pip"]:
            name, words = "pip", words[2:]
        if name in ("pip", "pip3") and words[:1] == ["install"] and "--no-index" not in words:
            packages = [word for word in words[1:] if word and not word.startswith("-") and not _is_local(word)]
            found |= {f"pip install {package}" for package in packages[:1]}
        elif name == "code" and "--install-extension" in words[:-1]:
            extension = words[words.index("--install-extension") + 1]
            found |= {f"code --install-extension {extension}"} if not extension.endswith(".vsix") else set()
    return sorted(found)


def packages(task: Task) -> list[str]:
    """Debian packages that a task's set-up installs, sorted."""
    found: set[str] = set()
    for name, *words in _calls(task):
        given = [word for word in words if word and not word.startswith("-")]
        if name in ("apt", "apt-get", "aptitude") and given[:1] == ["install"]:
            found |= {word.split("=")[0] for word in given[1:] if not _is_local(word)}
    return sorted(found)


def _is_local(word: str) -> bool:
    """Return whether a package is a file of the desktop."""
    return word.startswith((".", "/", "~")) or word.endswith((".whl", ".tar.gz", ".zip", ".deb"))


def _calls(task: Task) -> Iterator[tuple[str, ...]]:
    for _, step in steps_of(task):
        if step.get("type") in _COMMANDS:
            yield from _of_command(step.get("parameters") or {}).calls


def programs(task: Task) -> Needs:
    """Return which programs a task's set-up starts or its evaluation is about; one of each set is enough.

    `related_apps` alone says little: an application of them counts where a getter reads its state or its files, or the
    instruction names it.
    """
    found = NOTHING
    for _, step in steps_of(task):
        parameters = step.get("parameters") or {}
        if step.get("type") in _COMMANDS:
            found |= _of_command(parameters).needs
        elif step.get("type") == "open":
            opened = ["xdg-open", *_openers(str(parameters.get("path")))]
            found |= frozenset(frozenset({program}) for program in opened)
        elif step.get("type") in ("activate_window", "close_window"):
            found |= of_words(["wmctrl"]).needs
        verification = parameters.get("verification")
        if isinstance(verification, dict):
            command = verification.get("command_success")
            found |= _of_command({"command": command, "shell": isinstance(command, str)}).needs
    return found | _of_evaluation(task) | _of_related_apps(task)


def _openers(path: str) -> list[str]:
    """Return the program that opens a file, where only one can."""
    return [program for program, ends in _FILES_OF.items() if path.lower().endswith(ends)]


def _of_command(parameters: dict[str, Any]) -> Commands:
    """Return what one command runs, read as OSWorld reads it."""
    command = parameters.get("command")
    if isinstance(command, list) and all(isinstance(word, str) for word in command) and command:
        return of_script(command[0]) if is_shell(parameters) else of_words(_unassigned(command))
    if not isinstance(command, str) or not command.strip():
        return Commands()
    if is_shell(parameters):
        return of_script(command)
    try:
        return of_words(_unassigned(shlex.split(command)))
    except ValueError:
        return Commands()  # an open quote: the step says so


def _unassigned(words: list[str]) -> list[str]:
    """Return words without the assignments before the program."""
    while words and words[0].partition("=")[1] and words[0].partition("=")[0].isidentifier():
        words = words[1:]
    return words


def _of_evaluation(task: Task) -> Needs:
    kinds = [str(getter.get("type")) for getter in getters_of(task)]
    found = {program for kind in kinds for start, program in _GETTERS_OF.items() if kind.startswith(start)}
    return frozenset(frozenset({program}) for program in found)


def _of_related_apps(task: Task) -> Needs:
    """Return the related applications that the instruction names, or whose files are looked at."""
    apps = task.raw.get("related_apps") or []
    names = [str(app).lower().replace(" ", "_") for app in apps] if isinstance(apps, list) else []
    text = task.instruction.lower()
    paths = [path for getter in getters_of(task) for path in _listed(getter.get("path") or "")]
    made = {program for path in paths for program in _openers(path)}
    related = {_APPS[name] for name in names if name in _APPS}
    return frozenset(frozenset({app}) for app in related if app in made or any(word in text for word in _NAMES[app]))
