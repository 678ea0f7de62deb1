"""The protocol of a desktop: a screen, a pointer, a keyboard, files, commands and ports, and nothing about tasks.

Invariants:
    - `start` boots a fresh desktop, `stop` leaves nothing behind and may be called at any time, twice as well.
    - A desktop is used by one session at a time. `stop` may run at any time; `perform`, `settle` and
      `release_inputs` never beside another call; the others (screenshots, programs, files, ports) beside each other.
    - Methods raise `DesktopError` when the desktop is broken, `ActionError` when only the action is wrong.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dart_gym.core.actions import Action
from dart_gym.core.operation_deadline import Judge

BACKGROUND = (0x3B, 0x5B, 0x7A)
"""Red, green and blue of a screen without windows."""


class ActionError(Exception):
    """The action cannot be carried out on this screen; the desktop is fine. Becomes part of the observation."""


@dataclass(frozen=True, slots=True)
class DesktopSpec:
    """What kind of desktop a task needs. Equal specs are interchangeable, so they key the warm pool.

    Attributes:
        kind: "xvfb", "fake" (drawn, for tests), or "osworld" (a machine that runs OSWorld's server, at `url`).
        width: screen width in pixels.
        height: screen height in pixels.
        profile: what it is: "bare" (window manager only), "browser" (one Chromium kiosk with DevTools, kept over
            episodes), or "osworld" (the machine that OSWorld's tasks expect).
        sandbox: "bwrap", or "none" on machines without user namespaces (an explicit choice of the user).
        reusable: whether a later episode may run on the same desktop, because tasks of this profile reset
            everything that they touch. Otherwise a reset throws the desktop away.
        env: extra environment variables of the programs on it.
        url: address of OSWorld's server, for kind "osworld"; given by the operator, never by a task.
        margin: rows of pixels below the screen, on which programs draw and which no screenshot shows; for the signs
            of a scenario (see `Desktop.read_margin`). Kind "xvfb" only.
        memory_mb: what all programs of a desktop in a sandbox may use, files included, which are in memory too.
        processes: how many processes and threads they may be.
        cpus: how many processors they may use at once, where control groups can be made.
        storage_mb: size of the files in each of home, `/tmp` and `/dev/shm`.
        sites: names of the mock sites that it reaches (`dart_gym.sites`). Kind "xvfb" in a sandbox only.
        panel: whether there are a bar at the top and a dock at the left, as in GNOME. Profile "osworld" only.
    """

    kind: str = "xvfb"
    width: int = 1920
    height: int = 1080
    profile: str = "bare"
    sandbox: str = "bwrap"
    reusable: bool = False
    env: tuple[tuple[str, str], ...] = ()
    url: str = ""
    margin: int = 0
    memory_mb: int = 4096
    processes: int = 1024
    cpus: float = 4.0
    storage_mb: int = 1024
    sites: tuple[str, ...] = ()
    panel: bool = False

    @property
    def drawn_height(self) -> int:
        """Rows of pixels that programs draw on: the screen's and the margin's."""
        return self.height + self.margin


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a finished program left behind.

    Attributes:
        missing: whether there is no such program, with return code 127: programs may end with that number, too.
    """

    returncode: int
    stdout: bytes = b""
    stderr: bytes = b""
    missing: bool = False


@dataclass(frozen=True, slots=True)
class AccessibilityTree:
    """What the programs on the screen tell about their windows and widgets.

    Attributes:
        complete: False when a program did not answer, or the time was over, so that parts are missing.
    """

    xml: str
    complete: bool
    nodes: int


@dataclass(frozen=True, slots=True)
class SettleResult:
    """How the wait for a screen went; `stable`: it stood still for the asked time, False when the cap was hit."""

    stable: bool
    waited_s: float
    frames: int = 0


@dataclass(frozen=True, slots=True)
class SettlePolicy:
    """When a screen counts as settled.

    Attributes:
        quiet_ms: no change for so long.
        max_ms: the cap on the whole wait.
        min_ms: shortest wait (gives slow programs time to react).
        reply_quiet_ms: no change for so long is enough once the focused program says that it has handled all input;
            a program that is busy is waited for, at most `max_ms`. None: do not ask, `quiet_ms` alone decides, as it
            does where a program cannot say.
        busy_ms: a rest in which new processes ran does not count, as a program starts; such a wait is capped by this
            where it is longer than `max_ms`. Neither does one in which the others worked, capped by `max_ms`. 0:
            processes are not looked at, as where a desktop cannot tell of them.
    """

    quiet_ms: float = 60.0
    max_ms: float = 2000.0
    min_ms: float = 0.0
    reply_quiet_ms: float | None = None
    busy_ms: float = 0.0


@runtime_checkable
class Endable(Protocol):
    """Additional methods of a desktop that knows who ended it."""

    @property
    def killed(self) -> bool:
        """Return whether a program inside ended it, or held it up until it had to be ended."""

    async def wait_until_ended(self) -> None:
        """Return when it is known to have ended."""


@runtime_checkable
class Accountable(Protocol):
    """Additional methods of a desktop that knows why it is slow."""

    async def holds_up(self) -> bool:
        """Return whether its own programs hold it up now, and not a machine that has too much to do."""

    def judge(self, enough_s: float | None = None) -> Judge:
        """Return what decides whether it is late by its own doing, at the latest with `enough_s` of a processor."""


@runtime_checkable
class Traceable(Protocol):
    """Additional attributes of a desktop that knows what it has been through."""

    @property
    def traces(self) -> int:
        """How many operations it has had whose effects no reset takes back (`desktops.input.carried_over`)."""


@runtime_checkable
class SiteHost(Protocol):
    """Additional methods of a desktop whose spec names sites; the addresses are those of `dart_gym.sites`."""

    async def set_site(self, name: str, state: Any) -> None:
        """Begin an episode of a site with a state. Raises `DesktopError`."""

    async def site_state(self, name: str) -> dict[str, Any]:
        """`initial_state`, `current_state` and `state_diff` of a site. Raises `DesktopError`."""

    async def seal_sites(self) -> None:
        """From now on programs of the desktop change the current states alone, as a page does."""


@runtime_checkable
class Desktop(Protocol):
    """One desktop. All methods are coroutines; seconds in floats; pixels in ints."""

    spec: DesktopSpec

    async def start(self, *, timeout: float = 60.0) -> None:
        """Boot, and return when the screen and the profile's programs are ready."""

    async def stop(self) -> None:
        """End every program of the desktop and remove its files, sockets and mounts. Idempotent."""

    @property
    def alive(self) -> bool:
        """Return whether the desktop is started and its processes still run. Cheap."""

    async def screenshot(self) -> NDArray[np.uint8]:
        """A fresh (H, W, 3) uint8 RGB frame with the cursor drawn in."""

    async def read_margin(self) -> NDArray[np.uint8]:
        """The rows below the screen, as (margin, W, 3) uint8 RGB without the cursor. Cheap: may be called often."""

    async def perform(self, action: Action) -> None:
        """Carry out an action with pointer and keyboard; Wait waits; Done, Fail and AskUser do nothing."""

    async def release_inputs(self) -> None:
        """Release keys and buttons, and take locks, group and selections back, as far as the desktop can."""

    async def settle(self, policy: SettlePolicy) -> SettleResult:
        """Wait until the screen stands still."""

    async def execute(
        self, command: list[str], *, timeout: float = 60.0, stdin: bytes = b"", env: dict[str, str] | None = None
    ) -> CommandResult:
        """Run a program inside the desktop to its end. Raises `DesktopTimeoutError` (and kills it) when late."""

    async def launch(self, command: list[str], *, env: dict[str, str] | None = None) -> None:
        """Start a program inside the desktop and leave it running. Raises `MissingProgramError`."""

    async def read_file(self, path: str) -> bytes:
        """Content of a file as the desktop's user sees it. Raises `FileNotFoundError`."""

    async def write_file(self, path: str, data: bytes) -> None:
        """Create or replace a file, making its parent directories."""

    async def accessibility_tree(self, *, timeout: float = 10.0) -> AccessibilityTree:
        """Return what the programs tell about their widgets; what they do not tell within the time is left out."""

    async def open_port(self, port: int) -> Path:
        """Path of a Unix socket on this side that leads to a TCP port on the desktop's own loopback."""
