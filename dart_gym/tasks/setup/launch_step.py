"""The step `launch`: start a program, and wait for its window where one can be expected.

OSWorld starts the program and does not wait: its tasks hold pauses, which a slow machine outlasts. So here the start of
a program that is slow to show its window is waited for, because the steps after it press keys in that window.

Invariants:
    - Only programs of `WINDOWS_OF` are waited for, and not where an argument says that they show none.
    - The wait ends when a new window is painted, when an older one of the same program has another title (it got what
      was launched), when all programs have rested for `REST_S`, after `SECOND_S` where the program ran already, and
      after `FIRST_S` in any case.
    - A window that does not come is no error.
"""

import asyncio
import itertools
import shlex
import time
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_gym.core.errors import TaskError
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.tasks.screen.idleness import Rest, wait_until_idle
from dart_gym.tasks.screen.windows import Geometry, Window, colour_counts, geometry, list_windows
from dart_gym.tasks.setup.command_steps import missing_error
from dart_gym.tasks.setup.setup_step import POLL_S, Surroundings, command_line, is_shell

FIRST_S = 40.0
"""The most seconds until a program shows its first window: LibreOffice's first start on a busy machine."""
SECOND_S = 10.0
"""The most seconds for a program that ran already: it hands over to that one, with or without a window."""
REST_S = 3.0
"""Programs that have rested for so long are not about to show a window."""
SETTLED_S = 10.0
"""The most seconds until a program whose window is shown is idle; one that plays something never is."""
KILL_TIMEOUT_S = 10.0
_DRAWN_PIXELS = 1500
_KILLERS = frozenset({"pkill", "killall"})

_OFFICE = ("libreoffice", "soffice", "localc", "lowriter", "loimpress", "lodraw")
WINDOWS_OF = {
    **dict.fromkeys(_OFFICE, ("libreoffice-",)),  # by its class: the title of the splash screen is LibreOffice, too
    "gimp": ("GNU Image Manipulation Program",),
    "vlc": ("VLC media player",),
    "google-chrome": ("Google Chrome", "Chromium"),
    "thunderbird": ("Thunderbird", "Account Setup"),
}
"""Parts of class or title of a slow program's main window."""

_OFFICE_OPTIONS = "headless invisible convert-to convert-images-to print-to-file cat pt p terminate_after_init"
_WINDOWLESS = {
    **dict.fromkeys(_OFFICE, _OFFICE_OPTIONS),
    "gimp": "i no-interface license v",
    "vlc": "list list-verbose longhelp advanced reset-config",
    "google-chrome": "headless dump-dom print-to-pdf screenshot no-startup-window product-version",
    "thunderbird": "headless v",
}
"""Options with which a program shows no window, without their hyphens."""
_SHELLS = frozenset({"sh", "bash", "dash"})
_PREFIXES = frozenset({"env", "exec", "nice", "nohup", "setsid", "sudo", "then", "do"})
"""What may stand before the name of the program that is started."""
_EVERYWHERE = ("help", "h", "?", "version")
_NO_INTERFACE = {"dummy", "rc", "cli", "ncurses", "http", "telnet", "lua"}
"""VLC's interfaces without a window: `-I dummy`, `--intf=rc`."""


async def launch(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Start a program; wait for the window of one that is known to show one.

    OSWorld also starts `pkill` this way, and the killed program anew right after: the next step has to find it gone.

    Raises:
        StepError: the program is missing. In an evaluation one that is named by a path is overlooked, as in OSWorld.
    """
    command, desktop = command_line(parameters), where.desktop
    if command[0] in _KILLERS:
        await _kill(desktop, command)
        return
    titles = expected_window(parameters)
    before = await list_windows(desktop) if titles else []
    try:
        await desktop.launch(command)
    except (FileNotFoundError, PermissionError) as error:
        if where.evaluating and "/" in command[0]:
            return  # the desktop's own program, which the agent removed: OSWorld overlooks it
        raise missing_error(command[0])(
            f"cannot start {command[0]!r} ({error}); `dart-gym doctor` says which package has it"
        ) from error
    if titles:
        await _wait_for_window(desktop, titles, before)


def expected_window(parameters: dict[str, Any]) -> tuple[str, ...]:
    """Return parts of class or title of the window that a launch will show; none where it shows none. Pure."""
    for program, words in _started(parameters):
        windowless = {*_EVERYWHERE, *_WINDOWLESS[program].split()}
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        silent = any(option.lstrip("-") in windowless for option in options)
        return () if silent or (program == "vlc" and _without_interface(words)) else WINDOWS_OF[program]
    return ()


def _without_interface(words: list[str]) -> bool:
    for word, following in zip(words, [*words[1:], ""], strict=False):
        option, _, value = word.partition("=")
        if option in ("-I", "--intf") and (value or following) in _NO_INTERFACE:
            return True
    return False


def _started(parameters: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield the programs of `WINDOWS_OF` that a command starts, with their arguments."""
    command = parameters.get("command")
    words = [command] if isinstance(command, str) else command
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return
    if isinstance(command, str) or is_shell(parameters):
        words = _split(words[0])
    elif PurePosixPath(words[0]).name in _SHELLS and "-c" in words[1:-1]:
        words = _split(words[words.index("-c") + 1])
    at_start = True  # of a command, where a program's name stands
    for number, word in enumerate(words):
        name, assigned, _ = word.partition("=")
        program = PurePosixPath(word).name
        if at_start and program in WINDOWS_OF:
            yield program, list(itertools.takewhile(lambda one: not _is_break(one), words[number + 1 :]))
        is_prefix = bool(assigned and name.isidentifier()) or program in _PREFIXES
        at_start = _is_break(word) or (at_start and is_prefix)


def _split(text: str) -> list[str]:
    """Return the words and operators of a shell line; none of one that no shell would take."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    try:
        return list(lexer)
    except ValueError:
        return []


def _is_break(word: str) -> bool:
    """Return whether a command ends, and perhaps another one begins, at an operator."""
    return bool(word) and set(word) <= set(";&|(")


async def _kill(desktop: Desktop, command: list[str]) -> None:
    result = await desktop.execute(command, timeout=KILL_TIMEOUT_S)
    pattern = command[-1]
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while result.returncode == 0 and (await desktop.execute(["pgrep", pattern], timeout=10.0)).returncode == 0:
        if time.monotonic() > deadline:
            return  # as in OSWorld: a program may ignore the signal
        await asyncio.sleep(POLL_S)


async def _wait_for_window(desktop: Desktop, parts: tuple[str, ...], before: list[Window]) -> None:
    """Wait until the main window of a program is shown, painted, and stands still, or until none can be expected."""
    started, rest = time.monotonic(), Rest(desktop)
    known = {window.id: window.title for window in before if _is_of(window, parts)}
    old = {window.id for window in before}
    limit = SECOND_S if known else FIRST_S
    while True:
        windows = [window for window in await list_windows(desktop) if _is_of(window, parts)]
        main = next((window for window in windows if window.id not in old), None)
        told = any(window.title != known.get(window.id, window.title) for window in windows)
        if told or (main is not None and await _painted(desktop, main)):
            break
        if await rest.seconds() >= REST_S or time.monotonic() - started > limit:
            return
        await asyncio.sleep(POLL_S)
    await wait_until_idle(desktop, timeout=SETTLED_S)


def _is_of(window: Window, parts: tuple[str, ...]) -> bool:
    return any(part in window.title or part in window.wm_class for part in parts)


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
