"""OSWorld's set-up steps (`config` and `evaluator.postconfig`) on a desktop.

Invariants:
    - A step that cannot be carried out raises `TaskError` with its number and type; none is skipped.
    - Commands run inside the desktop, as its user; nothing here reads or writes files of this side, except
      a step's `stdout` and `stderr`, which land in the evaluation's own cache directory.
    - As upstream, a program's exit status does not make an `execute` step fail.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from dart_gym.desktops.base import Desktop
from dart_gym.errors import DesktopTimeoutError, TaskError
from dart_gym.tasks.parameters import Value, fill
from dart_gym.tasks.windows import find_windows, wait_for_window

HOME = "/home/user"
MAX_SLEEP_S = 60.0
EXECUTE_TIMEOUT_S = 120.0
WINDOW_TIMEOUT_S = 15.0

Handler = Callable[[Desktop, dict[str, Any], "Path | None"], Awaitable[None]]


class StepError(Exception):
    """What is wrong with one step; `run_steps` adds which one."""


async def run_steps(desktop: Desktop, steps: list[dict[str, Any]], *, cache: Path | None = None) -> None:
    """Carry out set-up steps in order.

    Args:
        desktop: where.
        steps: OSWorld's `{"type": ..., "parameters": {...}}`.
        cache: directory of this side for the output that steps ask to keep; None where none may.

    Raises:
        TaskError: a step is unknown, malformed, or did not work; the message names it.
        DesktopError: the desktop broke.
    """
    for number, step in enumerate(steps, start=1):
        kind, parameters = step.get("type"), step.get("parameters") or {}
        handler = _HANDLERS.get(kind) if isinstance(kind, str) else None
        where = f"set-up step {number} of {len(steps)} ({kind})"
        if handler is None:
            raise TaskError(f"{where} is not supported here; supported: {', '.join(sorted(_HANDLERS))}")
        if not isinstance(parameters, dict):
            raise TaskError(f"{where}: 'parameters' must be an object, got {parameters!r}")
        try:
            await handler(desktop, parameters, cache)
        except KeyError as error:
            raise TaskError(f"{where} lacks the parameter {error}") from error
        except (StepError, DesktopTimeoutError) as error:
            raise TaskError(f"{where}: {error}") from error


def command_line(parameters: dict[str, Any], desktop: Desktop) -> list[str]:
    """The program and its arguments that a step's `command` and `shell` stand for, by the rules of OSWorld's server.

    Raises:
        StepError: `command` is neither text nor a list of texts, or is empty.
    """
    width, height = desktop.spec.width, desktop.spec.height
    screen: dict[str, Value] = {
        "SCREEN_WIDTH": width,
        "SCREEN_HEIGHT": height,
        "SCREEN_WIDTH_HALF": width // 2,
        "SCREEN_HEIGHT_HALF": height // 2,
        "CLIENT_PASSWORD": "password",
    }
    command = fill(parameters["command"], screen)
    shell = parameters.get("shell", False) in (True, "true", "True")  # some of OSWorld's tasks hold a string
    if isinstance(command, str):
        words = [command] if shell else shlex.split(command)
    elif isinstance(command, list) and all(isinstance(word, str) for word in command):
        words = command
    else:
        raise StepError(f"'command' must be text or a list of texts, got {command!r}")
    if not words or not words[0]:
        raise StepError("'command' is empty")
    if shell:
        return ["/bin/sh", "-c", *words]
    return [HOME + word[1:] if word == "~" or word.startswith("~/") else word for word in words]


async def _launch(desktop: Desktop, parameters: dict[str, Any], cache: Path | None) -> None:
    await desktop.launch(command_line(parameters, desktop))


async def _execute(desktop: Desktop, parameters: dict[str, Any], cache: Path | None) -> None:
    if parameters.get("until"):
        raise StepError("'until' is not supported; loop in the command itself")
    result = await desktop.execute(command_line(parameters, desktop), timeout=EXECUTE_TIMEOUT_S)
    for stream in ("stdout", "stderr"):
        if parameters.get(stream):
            cached_path(cache, parameters[stream]).write_bytes(getattr(result, stream))


async def _sleep(desktop: Desktop, parameters: dict[str, Any], cache: Path | None) -> None:
    seconds = parameters["seconds"]
    try:
        seconds = float(seconds)
    except (TypeError, ValueError):
        raise StepError(f"'seconds' must be a number, got {seconds!r}") from None
    if not 0 <= seconds <= MAX_SLEEP_S:
        raise StepError(f"'seconds' must be in [0, {MAX_SLEEP_S:g}], got {seconds:g}")
    await asyncio.sleep(seconds)


async def _write_file(desktop: Desktop, parameters: dict[str, Any], cache: Path | None) -> None:
    path, text = parameters["path"], parameters["text"]
    if not isinstance(path, str) or not isinstance(text, str):
        raise StepError("'path' and 'text' must be text")
    await desktop.write_file(HOME + path[1:] if path.startswith("~/") else path, text.encode())


async def _activate_window(desktop: Desktop, parameters: dict[str, Any], cache: Path | None) -> None:
    await _on_windows(desktop, parameters, "windowactivate")


async def _close_window(desktop: Desktop, parameters: dict[str, Any], cache: Path | None) -> None:
    await _on_windows(desktop, parameters, "windowclose")


async def _on_windows(desktop: Desktop, parameters: dict[str, Any], verb: str) -> None:
    name = parameters["window_name"]
    if not isinstance(name, str) or not name:
        raise StepError(f"'window_name' must be non-empty text, got {name!r}")
    strict, by_class = bool(parameters.get("strict")), bool(parameters.get("by_class"))
    if by_class:
        windows = await find_windows(desktop, name, strict=strict, by_class=True)
    else:
        windows = [await wait_for_window(desktop, name, strict=strict, timeout=WINDOW_TIMEOUT_S)]
    if not windows:
        raise StepError(f"no window of class {name!r}")
    result = await desktop.execute(["xdotool", verb, str(windows[0])], timeout=10.0)
    if result.returncode:
        raise StepError(f"xdotool {verb} failed: {result.stderr.decode(errors='replace').strip()}")


def cached_path(cache: Path | None, name: Any) -> Path:
    """Path of a file of the evaluation's cache. Raises `StepError` when the name leads out of it."""
    if cache is None:
        raise StepError("keeping output is only possible during an evaluation")
    if not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise StepError(f"{name!r} is not a plain file name")
    path = cache / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


_HANDLERS: dict[str, Handler] = {
    "launch": _launch,
    "execute": _execute,
    "command": _execute,
    "sleep": _sleep,
    "write_file": _write_file,  # not OSWorld's: bundled tasks carry their small files themselves
    "activate_window": _activate_window,
    "close_window": _close_window,
}
