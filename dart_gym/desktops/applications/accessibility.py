"""The accessibility tree of a desktop, as OSWorld's server gives it, with a deadline.

The tree is read by `accessibility_reader.py`, which runs inside the desktop with the system's Python. An application
that does not answer costs a fraction of a second and leaves a tree that is marked as incomplete.
"""

import json
from pathlib import Path
from typing import Any, Protocol

from dart_gym.core.errors import DesktopError, DesktopTimeoutError
from dart_gym.desktops.base.desktop import AccessibilityTree, CommandResult

EMPTY_TREE = "<desktop-frame/>"
TERMINAL_TIMEOUT_S = 30.0  # only a terminal that is there and does not answer takes it
_START_S = 2.0  # for the reader's start and end, beyond the time it has for reading
_READER = Path(__file__).with_name("accessibility_reader.py")


class Executes(Protocol):
    """The part of a desktop that is needed here."""

    async def execute(self, command: list[str], *, timeout: float = 60.0, stdin: bytes = b"") -> CommandResult:
        """Run a program inside the desktop to its end."""


async def read_tree(desktop: Executes, timeout: float) -> AccessibilityTree:
    """Read the accessibility tree of the screen, for at most `timeout` seconds.

    Raises:
        DesktopError: if a program that is needed is missing.
    """
    try:
        reply = await _read(desktop, "tree", timeout)
    except DesktopTimeoutError:
        return AccessibilityTree(EMPTY_TREE, complete=False, nodes=0)
    return AccessibilityTree(reply["xml"], reply["complete"], reply["nodes"])


async def terminal_text(desktop: Executes, timeout: float = TERMINAL_TIMEOUT_S) -> str | None:
    """The text of the focused terminal of the active window; None when no terminal is active, or it did not answer."""
    try:
        reply = await _read(desktop, "terminal", timeout)
    except DesktopTimeoutError:
        return None
    text: str | None = reply["text"]
    return text


async def _read(desktop: Executes, what: str, timeout: float) -> dict[str, Any]:
    command = ["/usr/bin/python3", "-I", "-", what, f"{timeout:.3f}"]
    result = await desktop.execute(command, stdin=_READER.read_bytes(), timeout=timeout + _START_S)
    if result.returncode:
        words = result.stderr.decode(errors="replace").strip().splitlines()
        raise DesktopError(
            f"the accessibility tree could not be read: {words[-1] if words else result.returncode}; next step: "
            "apt-get install python3-gi gir1.2-atspi-2.0 at-spi2-core python3-lxml"
        )
    reply: dict[str, Any] = json.loads(result.stdout)
    return reply
