"""Steps that run programs to their end: execute, execute_with_verification, run_script; and sleep."""

import asyncio
import math
from typing import Any

from dart_gym.core.errors import DesktopTimeoutError
from dart_gym.core.operation_deadline import LOOK_S, keep_open, seconds_left
from dart_gym.desktops.base.desktop import CommandResult, Desktop
from dart_gym.tasks.screen.windows import list_windows
from dart_gym.tasks.setup.setup_step import (
    EXECUTE_TIMEOUT_S,
    POLL_S,
    StepError,
    Surroundings,
    UnmetError,
    cached_path,
    command_line,
    is_shell,
    screen_values,
)
from dart_gym.tasks.setup.step_patience import StepLimit, work_done

MAX_SCRIPT_S = 1800.0
KEYS_DONE_S = 20.0
_KEYS = ("pyautogui", "xdotool")
"""What presses keys in tasks. The Ctrl+S of an evaluation is followed by pauses for a fast machine: half a second."""
_UNTIL_PERIOD_S = 0.3
_REMEDY = "`dart-gym doctor` says which package has it"
_SCRIPT = 'log=$(mktemp) && "$@" > "$log" 2>&1 < /dev/null; status=$?; tail -c 2000 "$log"; rm "$log"; exit $status'


async def execute(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Run a program to its end, whatever its exit status, or again and again `until` its outcome is as wanted.

    In an evaluation, what keys have begun (a document is being saved) is waited for as well.
    """
    command = command_line(parameters, screen_values(where.desktop))
    until = parameters.get("until") or {}
    if not isinstance(until, dict) or not until.keys() <= {"returncode", "stdout", "stderr"}:
        raise StepError(f"'until' may hold returncode, stdout and stderr, got {until!r}")
    limit = StepLimit(where, EXECUTE_TIMEOUT_S)
    while True:
        result = await run(where.desktop, command, shell=is_shell(parameters))
        for stream in ("stdout", "stderr"):
            if parameters.get(stream):
                try:
                    cached_path(where.kept, parameters[stream]).write_bytes(getattr(result, stream))
                except OSError as error:  # of this side
                    raise StepError(f"the output cannot be kept as {parameters[stream]!r}: {error}") from error
        if not until or reached(until, result):
            break
        if await limit.has_passed():
            raise UnmetError(f"{command[0]!r} did not reach {until} within {EXECUTE_TIMEOUT_S:g} s")
        await asyncio.sleep(_UNTIL_PERIOD_S)
    if where.evaluating and any(name in word for word in command for name in _KEYS):
        await work_done(where, KEYS_DONE_S)


async def run_script(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Run a program that came with a task, which must end well. Not OSWorld's: imported bundles bring theirs.

    What it leaves running may keep its output open: that goes into a file, or the wait for its end would be for theirs.
    """
    limit = _number(parameters.get("seconds", EXECUTE_TIMEOUT_S), "seconds", MAX_SCRIPT_S)
    words = command_line(parameters)
    result = await where.desktop.execute(["/bin/sh", "-c", _SCRIPT, "sh", *words], timeout=limit)
    if result.returncode:
        said = result.stdout.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
        raise UnmetError(f"{' '.join(words)!r} ended with status {result.returncode}: {last[:300]}")


async def run(
    desktop: Desktop, command: list[str], *, shell: bool, timeout: float = EXECUTE_TIMEOUT_S
) -> CommandResult:
    """Run a command line. Raises `StepError` where its program is missing."""
    result = await desktop.execute(command, timeout=timeout)
    if result.missing and not shell:
        reason = result.stderr.decode(errors="replace").strip()
        raise missing_error(command[0])(f"cannot run {command[0]!r} ({reason}); {_REMEDY}")
    return result


def missing_error(program: str) -> type[StepError]:
    """Return the error for a program that is not there: the desktop decides about a path, else the machine. Pure."""
    return UnmetError if "/" in program else StepError


def reached(until: dict[str, Any], result: CommandResult) -> bool:
    """Return whether an outcome is as wanted: any one of the conditions is enough, as in OSWorld. Pure."""
    if "returncode" in until and result.returncode == until["returncode"]:
        return True
    streams = (("stdout", result.stdout), ("stderr", result.stderr))
    return any(key in until and str(until[key]) in stream.decode(errors="replace") for key, stream in streams)


async def execute_with_verification(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Run a program, then wait until a window is shown or a command succeeds."""
    verification = parameters.get("verification") or {}
    if not isinstance(verification, dict) or not verification.keys() <= {"window_exists", "command_success"}:
        raise StepError(f"'verification' may hold window_exists and command_success, got {verification!r}")
    limit = _number(parameters.get("max_wait_time", 10), "max_wait_time", EXECUTE_TIMEOUT_S)
    await run(where.desktop, command_line(parameters), shell=is_shell(parameters))
    passing = StepLimit(where, limit)
    while not await _verified(where.desktop, verification):
        if await passing.has_passed():
            raise UnmetError(f"{verification} did not come true within {limit:g} s")
        await asyncio.sleep(POLL_S)


async def _verified(desktop: Desktop, verification: dict[str, Any]) -> bool:
    title, command = verification.get("window_exists"), verification.get("command_success")
    if title and not any(str(title) in window.title for window in await list_windows(desktop)):
        return False
    if command:
        line = command_line({"command": command, "shell": isinstance(command, str)})
        try:
            return (await desktop.execute(line, timeout=5.0)).returncode == 0
        except DesktopTimeoutError:
            return False
    return True


async def sleep(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Let time pass, because the task's author asked for it, as far as the deadline of the reset allows.

    In an evaluation the deadline is moved: an agent whose programs take long before the pause must not gain by it.
    """
    seconds, left = _number(parameters["seconds"], "seconds", float("inf")), seconds_left()
    if seconds >= left and not (where.evaluating and keep_open(seconds + LOOK_S)):
        raise StepError(
            f"'seconds' is {seconds:g}, but the deadline is in {max(left, 0):.0f} s; next step: raise deadline_s of "
            "the environment, or shorten the task's pause"
        )
    await asyncio.sleep(seconds)


def _number(value: Any, name: str, limit: float) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise StepError(f"{name!r} must be a number, got {value!r}") from None
    if not (0 <= seconds <= limit and math.isfinite(seconds)):
        allowed = f"in [0, {limit:g}]" if math.isfinite(limit) else "finite and not negative"
        raise StepError(f"{name!r} must be {allowed}, got {seconds:g}")
    return seconds
