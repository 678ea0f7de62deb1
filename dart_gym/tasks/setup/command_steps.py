"""Steps that run programs: launch, execute, execute_with_verification, run_script, sleep."""

import asyncio
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_gym.core.errors import DesktopTimeoutError, TaskError
from dart_gym.desktops.base.desktop import CommandResult, Desktop
from dart_gym.tasks.screen.idleness import wait_until_idle
from dart_gym.tasks.screen.windows import Geometry, Window, colour_counts, geometry, list_windows
from dart_gym.tasks.setup.setup_step import (
    EXECUTE_TIMEOUT_S,
    POLL_S,
    StepError,
    Surroundings,
    UnmetError,
    cached_path,
    command_line,
    is_shell,
)

MAX_SLEEP_S = 60.0
MAX_SCRIPT_S = 1800.0
KILL_TIMEOUT_S = 10.0
LAUNCH_TIMEOUT_S = 60.0
_UNTIL_PERIOD_S = 0.3
_NOT_FOUND = 127
_DRAWN_PIXELS = 1500
_REMEDY = "`dart-gym doctor` says which package has it"
_SCRIPT = 'log=$(mktemp) && "$@" > "$log" 2>&1 < /dev/null; status=$?; tail -c 2000 "$log"; rm "$log"; exit $status'
_KILLERS = frozenset({"pkill", "killall"})

WINDOWS_OF = {
    "libreoffice": ("libreoffice-",),  # by its class: the title of the splash screen is LibreOffice, too
    "soffice": ("libreoffice-",),
    "gimp": ("GNU Image Manipulation Program",),
    "vlc": ("VLC media player",),
    "google-chrome": ("Google Chrome", "Chromium"),
    "thunderbird": ("Thunderbird", "Account Setup"),
}
"""Parts of class or title of a slow program's main window: steps that follow its launch press keys in it."""

SETTLED_S = 10.0
"""The most seconds until a program whose window is shown is idle; one that plays something never is."""


async def launch(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Start a program; wait for the window of one that is known to show one.

    OSWorld does not wait: its tasks hold pauses, which a slow machine outlasts. It also starts `pkill` this way, and
    the killed program anew right after: the next step has to find it gone.
    """
    command = command_line(parameters, where.desktop)
    if command[0] in _KILLERS:
        await _kill(where.desktop, command)
        return
    titles = WINDOWS_OF.get(program_of(parameters), ())
    before = {window.id for window in await list_windows(where.desktop)} if titles else set()
    try:
        await where.desktop.launch(command)
    except (FileNotFoundError, PermissionError) as error:
        raise _missing(command[0])(
            f"cannot start {command[0]!r} ({error}); `dart-gym doctor` says which package has it"
        ) from error
    if titles:
        await _wait_for_new_window(where, program_of(parameters), titles, before)


def program_of(parameters: dict[str, Any]) -> str:
    """Name of the program that a step starts, without path, assignments and arguments; "" where none is seen. Pure."""
    command = parameters.get("command")
    words = command.split() if isinstance(command, str) else command
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return ""
    if is_shell(parameters) and len(words) == 1:
        words = words[0].split()
    for word in words:
        name, assigned, _ = word.partition("=")
        if not (assigned and name.isidentifier()):
            return word.rsplit("/", 1)[-1]
    return ""


async def _kill(desktop: Desktop, command: list[str]) -> None:
    result = await desktop.execute(command, timeout=KILL_TIMEOUT_S)
    pattern = command[-1]
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while result.returncode == 0 and (await desktop.execute(["pgrep", pattern], timeout=10.0)).returncode == 0:
        if time.monotonic() > deadline:
            return  # as in OSWorld: a program may ignore the signal
        await asyncio.sleep(POLL_S)


async def _wait_for_new_window(where: Surroundings, program: str, parts: tuple[str, ...], before: set[int]) -> None:
    """Wait until the main window of a program is shown, painted, and stands still."""
    desktop, deadline = where.desktop, time.monotonic() + LAUNCH_TIMEOUT_S
    while True:
        windows = [window for window in await list_windows(desktop) if window.id not in before]
        known = (window for window in windows if any(part in window.title or part in window.wm_class for part in parts))
        main = next(known, None)
        if main is not None and await _painted(desktop, main):
            break
        if time.monotonic() > deadline:
            shown = ", ".join(repr(window.title) for window in windows) or "none"
            problem = "showed no window" if main is None else "did not paint its window"
            raise UnmetError(f"{program} {problem} within {LAUNCH_TIMEOUT_S:g} s (new windows: {shown})")
        await asyncio.sleep(POLL_S)
    await wait_until_idle(desktop, timeout=SETTLED_S)


async def _painted(desktop: Desktop, window: Window) -> bool:
    try:
        place = await geometry(desktop, window.id)
    except TaskError:
        return False  # it was replaced by another one
    return drawn_pixels(await desktop.screenshot(), place) >= _DRAWN_PIXELS


def drawn_pixels(screen: NDArray[np.uint8], window: Geometry) -> int:
    """How many pixels of every second row of a window have another colour than most; a cursor has hundreds. Pure."""
    counts = colour_counts(screen, window)
    return int(counts.sum() - counts.max()) if len(counts) else 0


async def execute(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Run a program to its end, whatever its exit status, or again and again `until` its outcome is as wanted."""
    command = command_line(parameters, where.desktop)
    until = parameters.get("until") or {}
    if not isinstance(until, dict) or not until.keys() <= {"returncode", "stdout", "stderr"}:
        raise StepError(f"'until' may hold returncode, stdout and stderr, got {until!r}")
    deadline = time.monotonic() + EXECUTE_TIMEOUT_S
    while True:
        result = await run(where.desktop, command, shell=is_shell(parameters))
        for stream in ("stdout", "stderr"):
            if parameters.get(stream):
                try:
                    cached_path(where.kept, parameters[stream]).write_bytes(getattr(result, stream))
                except OSError as error:  # of this side
                    raise StepError(f"the output cannot be kept as {parameters[stream]!r}: {error}") from error
        if not until or reached(until, result):
            return
        if time.monotonic() > deadline:
            raise UnmetError(f"{command[0]!r} did not reach {until} within {EXECUTE_TIMEOUT_S:g} s")
        await asyncio.sleep(_UNTIL_PERIOD_S)


async def run_script(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Run a program that came with a task, which must end well. Not OSWorld's: imported bundles bring theirs.

    What it leaves running may keep its output open: that goes into a file, or the wait for its end would be for theirs.
    """
    limit = _number(parameters.get("seconds", EXECUTE_TIMEOUT_S), "seconds", MAX_SCRIPT_S)
    words = command_line(parameters, where.desktop)
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
    if result.returncode == _NOT_FOUND and not shell and not result.stdout:
        reason = result.stderr.decode(errors="replace").strip()
        raise _missing(command[0])(f"cannot run {command[0]!r} ({reason}); {_REMEDY}")
    return result


def _missing(program: str) -> type[StepError]:
    """Return the error for a program that is not there: the desktop decides about a path, else the machine. Pure."""
    return UnmetError if "/" in program else StepError


def reached(until: dict[str, Any], result: CommandResult) -> bool:
    """Whether an outcome is as wanted: any one of the conditions is enough, as in OSWorld. Pure."""
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
    await run(where.desktop, command_line(parameters, where.desktop), shell=is_shell(parameters))
    deadline = time.monotonic() + limit
    while not await _verified(where.desktop, verification):
        if time.monotonic() > deadline:
            raise UnmetError(f"{verification} did not come true within {limit:g} s")
        await asyncio.sleep(POLL_S)


async def _verified(desktop: Desktop, verification: dict[str, Any]) -> bool:
    title, command = verification.get("window_exists"), verification.get("command_success")
    if title and not any(str(title) in window.title for window in await list_windows(desktop)):
        return False
    if command:
        line = command_line({"command": command, "shell": isinstance(command, str)}, desktop)
        try:
            return (await desktop.execute(line, timeout=5.0)).returncode == 0
        except DesktopTimeoutError:
            return False
    return True


async def sleep(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Let time pass: the task's author asked for it."""
    await asyncio.sleep(_number(parameters["seconds"], "seconds", MAX_SLEEP_S))


def _number(value: Any, name: str, limit: float) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise StepError(f"{name!r} must be a number, got {value!r}") from None
    if not 0 <= seconds <= limit:
        raise StepError(f"{name!r} must be in [0, {limit:g}], got {seconds:g}")
    return seconds
