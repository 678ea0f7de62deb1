"""What every kind of set-up step needs: its surroundings, its errors, and how OSWorld reads commands and paths."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_gym.desktops.base.desktop import Desktop
from dart_gym.desktops.osworld_api.api_commands import BadRequest, program_arguments
from dart_gym.tasks.catalog.parameters import Value, fill
from dart_gym.tasks.setup.download_cache import DownloadCache

HOME = "/home/user"
CLIENT_PASSWORD = "password"  # of the desktop's user, as OSWorld's images have it; no secret
EXECUTE_TIMEOUT_S = 120.0
POLL_S = 0.1


class StepError(Exception):
    """What is wrong with one step; `run_steps` adds which one."""


class UnmetError(StepError):
    """The desktop is not as a step needs it: in an evaluation that is what the agent has made of it."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a step runs, with directories of this side for what it keeps and uploads; None where it may not."""

    desktop: Desktop
    downloads: DownloadCache
    kept: Path | None = None
    uploads: Path | None = None

    @property
    def evaluating(self) -> bool:
        """Return whether the steps belong to an evaluation, where the agent decided what the desktop looks like."""
        return self.kept is not None


Handler = Callable[[Surroundings, dict[str, Any]], Awaitable[None]]


def screen_values(desktop: Desktop) -> dict[str, Value]:
    """Return what OSWorld's placeholders stand for. OSWorld fills them in `execute` and `command` only."""
    width, height = desktop.spec.width, desktop.spec.height
    return {
        "SCREEN_WIDTH": width,
        "SCREEN_HEIGHT": height,
        "SCREEN_WIDTH_HALF": width // 2,
        "SCREEN_HEIGHT_HALF": height // 2,
        "CLIENT_PASSWORD": CLIENT_PASSWORD,
    }


def command_line(parameters: dict[str, Any], filled: Mapping[str, Value] | None = None) -> list[str]:
    """Program and arguments of a step's `command` and `shell`, by OSWorld's rules.

    Args:
        parameters: those of the step.
        filled: values of placeholders, for steps in which OSWorld fills them; None where text in braces stays.

    Raises:
        StepError: there is no command.
    """
    command = parameters["command"] if filled is None else fill(parameters["command"], filled)
    values = {"command": command, "shell": is_shell(parameters)}
    try:
        words = program_arguments(values, HOME)
    except BadRequest as error:
        raise StepError(str(error)) from error
    return words if values["shell"] else [HOME if word == "~" else word for word in words]


def is_shell(parameters: dict[str, Any]) -> bool:
    """Return whether a command goes through a shell; some of OSWorld's tasks hold a string."""
    return parameters.get("shell", False) in (True, "true", "True")


def required_text(parameters: dict[str, Any], name: str) -> str:
    """A parameter that must be non-empty text. Raises `StepError`, or `KeyError` where it is missing."""
    value = parameters[name]
    if not isinstance(value, str) or not value:
        raise StepError(f"{name!r} must be non-empty text, got {value!r}")
    return value


async def expand_path(desktop: Desktop, path: str) -> str:
    """A path with `~` and `$VARIABLE` of the desktop's environment filled in; unknown variables stay as they are."""
    path = HOME + path[1:] if path == "~" or path.startswith("~/") else path
    for variable in {match[1] or match[2] for match in re.finditer(r"\$(?:(\w+)|\{(\w+)\})", path)}:
        result = await desktop.execute(["printenv", variable], timeout=10.0)
        if result.returncode == 0:
            value = result.stdout.decode(errors="replace").rstrip("\n").replace("\\", r"\\")
            path = re.sub(rf"\$(?:{variable}\b|\{{{variable}\}})", value, path)
    return path


def cached_path(cache: Path | None, name: Any) -> Path:
    """Path of a file of the evaluation's cache. Raises `StepError` when the name leads out of it."""
    if cache is None:
        raise StepError("keeping output is only possible during an evaluation")
    if not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise StepError(f"{name!r} is not a plain file name")
    path = cache / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
