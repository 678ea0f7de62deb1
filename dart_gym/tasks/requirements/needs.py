"""What a task needs besides a desktop: files of the web, live sites, programs. Pure functions of its JSON."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dart_gym.sites.site_catalog import RESERVED
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.setup.chrome_steps import HISTORY_URL
from dart_gym.tasks.setup.command_steps import program_of
from dart_gym.tasks.setup.setup_step import is_shell

"""The empty database that OSWorld's step `update_browse_history` fills."""

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
_SHELL_WORDS = frozenset(
    "[ [[ ! { } ( ) : . alias bg bind break builtin caller case cd command continue declare dirs disown do done echo "
    "elif else enable esac eval exec exit export false fg fi for function getopts hash help history if in jobs let "
    "local logout popd printf pushd pwd read readonly return select set shift shopt source suspend test then time "
    "times trap true type typeset ulimit umask unalias unset until wait while".split()
)
_SHELLS = frozenset({"sh", "bash", "/bin/sh", "/bin/bash"})
_WRAPPERS = frozenset({"sudo", "timeout", "nohup", "env"})
_ASSIGNMENT = re.compile(r"\w+=")


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
    return sorted({host for url in urls if (host := _host(url))})


def _host(url: str) -> str:
    """Host of an address of the web, "" for what is on the desktop itself."""
    if "://" not in url:
        url = f"https://{url}"
    parts = urlsplit(url)
    local = parts.scheme not in ("http", "https") or parts.hostname in ("localhost", "127.0.0.1", None)
    local = local or str(parts.hostname).rpartition(".")[2] in RESERVED  # a mock site
    return "" if local else str(parts.hostname)


def installs(task: Task) -> list[str]:
    """Python and VS Code packages that a task's set-up installs from the network, sorted."""
    found = set()
    for text in _command_texts(task):
        found |= {f"pip install {match[1]}" for match in re.finditer(r"\bpip3? install (?:-\S+ )*(\S+)", text)}
        found |= {f"code --install-extension {match[1]}" for match in _EXTENSION.finditer(text)}
    return sorted(found)


def packages(task: Task) -> list[str]:
    """Debian packages that a task's set-up installs, sorted."""
    words = [word for text in _command_texts(task) for match in _PACKAGES.finditer(text) for word in match[1].split()]
    return sorted({word.split("=")[0] for word in words if not word.startswith("-")})


def _command_texts(task: Task) -> Iterator[str]:
    for _, step in steps_of(task):
        if step.get("type") in ("execute", "command", "launch"):
            command = (step.get("parameters") or {}).get("command")
            yield " ".join(map(str, command)) if isinstance(command, list) else str(command or "")


_PACKAGES = re.compile(r"\bapt(?:-get)?(?: -\S+)* install((?: +-?[\w.+:=-]+)+)")
_EXTENSION = re.compile(r"--install-extension (?!\S*\.vsix)(\S+)")


def programs(task: Task) -> list[str]:
    """Programs that a task starts or is about, as far as its JSON tells, sorted."""
    found: set[str] = set()
    for _, step in steps_of(task):
        parameters = step.get("parameters") or {}
        if step.get("type") in ("launch", "execute", "command"):
            found |= set(_programs_of(parameters))
        elif step.get("type") == "open":
            found.add("xdg-open")
        elif step.get("type") in ("activate_window", "close_window"):
            found.add("wmctrl")
    apps = task.raw.get("related_apps") or []
    names = [str(app).lower().replace(" ", "_") for app in apps] if isinstance(apps, list) else []
    return sorted(found | {_APPS[name] for name in names if name in _APPS})


def _programs_of(parameters: dict[str, Any]) -> Iterator[str]:
    """Programs of one command; of a shell line, those at the beginnings of its commands."""
    words = parameters.get("command")
    if isinstance(words, list) and words[:1] and words[0] in _SHELLS and "-c" in words[:-1]:
        yield from _shell_programs(str(words[words.index("-c") + 1]))
    elif is_shell(parameters):
        yield from _shell_programs(words[0] if isinstance(words, list) and words else str(words))
    else:
        name = program_of(parameters)
        if name and not _is_script(words):
            yield name


def _is_script(words: Any) -> bool:
    """Whether a command runs a file that the task itself brought."""
    first = words[0] if isinstance(words, list) and words else str(words).split(" ", 1)[0]
    return "/" in first and not first.startswith(("/usr/", "/bin/", "/opt/"))


def _shell_programs(line: str) -> Iterator[str]:
    """Programs at the beginnings of a shell line's commands, as well as a look at its words can tell."""
    for command in _commands(line):
        words = [word for word in command if not _ASSIGNMENT.match(word)]
        while words and words[0] in _WRAPPERS:
            yield words[0]
            words = [word for word in words[1:] if not word.startswith("-")]
        if not words or words[0] in _SHELL_WORDS or _is_script(words):
            continue
        name = os.path.basename(words[0])
        if re.fullmatch(r"[A-Za-z][\w.+-]*", name):
            yield name


def _commands(line: str) -> Iterable[list[str]]:
    lexer = shlex.shlex(line.replace("\n", " ; "), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    command: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";&|()"):
                yield command
                command = []
            else:
                command.append(word)
    except ValueError:
        return  # an open quote: the shell will say so
    yield command
