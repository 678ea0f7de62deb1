"""A drawn desktop for tests: buttons and a text line on numpy arrays, no process, answers in microseconds.

Invariants:
    - Deterministic: the same widgets and actions give the same frames.
    - Honest about the protocol: off-screen clicks are `ActionError`, use after a crash is `DesktopError`.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from dart_gym.core.actions import Action, Click, Drag, Move, Scroll, Type, Wait
from dart_gym.core.errors import DesktopError
from dart_gym.desktops.base.desktop import (
    AccessibilityTree,
    ActionError,
    CommandResult,
    DesktopSpec,
    SettlePolicy,
    SettleResult,
)

_WHITE = (255, 255, 255)
_COMPONENT = "https://accessibility.ubuntu.example.org/ns/component"


@dataclass(frozen=True, slots=True)
class Button:
    """A drawn button: (x, y) is its top left corner, in pixels; `color` is RGB; `name` is the label unless set."""

    label: str
    x: int
    y: int
    width: int
    height: int
    color: tuple[int, int, int]
    border: str | None = "black"
    name: str = ""

    def contains(self, x: int, y: int) -> bool:
        """Return whether a point lies on it."""
        return self.x <= x < self.x + self.width and self.y <= y < self.y + self.height

    @property
    def center(self) -> tuple[int, int]:
        """Its middle."""
        return self.x + self.width // 2, self.y + self.height // 2


class FakeDesktop:
    """A screen of buttons. Scenarios place them with `show` and read what was `clicked` (names) and `typed` since."""

    def __init__(self, spec: DesktopSpec) -> None:
        self.spec = spec
        self.clicked: list[str] = []
        self.typed = ""
        self.buttons: tuple[Button, ...] = ()
        self._files: dict[str, bytes] = {}
        self._pointer = (0, 0)
        self._page: NDArray[np.uint8] | None = None
        self._alive = False

    # --- what scenarios of the suite "fake" use

    def show(self, buttons: tuple[Button, ...], *, keep_pointer: bool = False) -> None:
        """Put up a page and forget what happened on the last one."""
        self.buttons, self._page = buttons, None
        self._pointer = self._pointer if keep_pointer else (0, 0)
        self.clicked, self.typed = [], ""

    def crash(self) -> None:
        """Die, as a real desktop may at any time."""
        self._alive = False

    # --- the protocol

    async def start(self, *, timeout: float = 60.0) -> None:
        """Put up an empty screen."""
        self._alive = True
        self.show(())

    async def stop(self) -> None:
        """Forget everything."""
        self._alive = False
        self.buttons = ()
        self._page = None
        self._files = {}

    @property
    def alive(self) -> bool:
        """Return whether it is started and did not crash."""
        return self._alive

    def _check_alive(self) -> None:
        if not self._alive:
            raise DesktopError("the fake desktop is not running (it was never started, was stopped, or crashed)")

    def _draw(self) -> NDArray[np.uint8]:
        image = Image.new("RGB", (self.spec.width, self.spec.height), _WHITE)
        draw = ImageDraw.Draw(image)
        for button in self.buttons:
            corner = (button.x + button.width - 1, button.y + button.height - 1)
            width = 3 if (button.name or button.label) in self.clicked else 1
            draw.rectangle(((button.x, button.y), corner), button.color, outline=button.border, width=width)
            draw.text(button.center, button.label, "black", anchor="mm")
        if self.typed:
            draw.text((2, self.spec.height - 12), self.typed[-80:].replace("\n", " "), "black")
        return np.asarray(image)

    async def screenshot(self) -> NDArray[np.uint8]:
        """The page with a small black cursor."""
        self._check_alive()
        if self._page is None:
            self._page = self._draw()
        frame = self._page.copy()
        x, y = self._pointer
        frame[y : y + 4, x : x + 2] = 0
        frame[y : y + 2, x : x + 4] = 0
        return frame

    async def read_margin(self) -> NDArray[np.uint8]:
        """Nothing: this screen has no margin."""
        return np.empty((0, self.spec.width, 3), np.uint8)

    def _point_to(self, x: int, y: int) -> None:
        if not (0 <= x < self.spec.width and 0 <= y < self.spec.height):
            raise ActionError(f"({x}, {y}) is outside of the {self.spec.width}x{self.spec.height} screen")
        self._pointer = (x, y)

    async def perform(self, action: Action) -> None:
        """Carry out an action: clicks hit buttons, text is collected, keys do nothing."""
        self._check_alive()
        match action:
            case Click(x=x, y=y):
                if x is not None and y is not None:
                    self._point_to(x, y)
                hit = [b.name or b.label for b in self.buttons if b.contains(*self._pointer)]
                self.clicked += hit * action.count
            case Move(x=x, y=y):
                self._point_to(x, y)
            case Drag(path=path):
                for x, y in path:
                    self._point_to(x, y)
            case Scroll(x=x, y=y):
                if x is not None and y is not None:
                    self._point_to(x, y)
            case Type(text=text):
                self.typed += text
            case Wait(seconds=seconds):
                await asyncio.sleep(seconds)
        self._page = None

    async def release_inputs(self) -> None:
        """Nothing is ever held."""

    async def settle(self, policy: SettlePolicy) -> SettleResult:
        """A drawn screen is always stable."""
        self._check_alive()
        return SettleResult(stable=True, waited_s=0.0, frames=1)

    async def execute(
        self, command: list[str], *, timeout: float = 60.0, stdin: bytes = b"", env: dict[str, str] | None = None
    ) -> CommandResult:
        """There are no programs: always "command not found"."""
        self._check_alive()
        return CommandResult(127, stderr=b"the fake desktop has no programs\n", missing=True)

    async def launch(self, command: list[str], *, env: dict[str, str] | None = None) -> None:
        """There are no programs."""
        raise DesktopError(f"the fake desktop cannot launch {command[0]!r}: it has no programs; use kind 'xvfb'")

    async def read_file(self, path: str) -> bytes:
        """Content of a file that `write_file` made."""
        self._check_alive()
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path]

    async def write_file(self, path: str, data: bytes) -> None:
        """Keep a file in memory."""
        self._check_alive()
        self._files[path] = data

    async def accessibility_tree(self, *, timeout: float = 10.0) -> AccessibilityTree:
        """One application with the buttons."""
        self._check_alive()
        root = ElementTree.Element("desktop-frame")
        application = ElementTree.SubElement(root, "application", name="fake")
        for button in self.buttons:
            place = {f"{{{_COMPONENT}}}screencoord": str((button.x, button.y))}
            size = {f"{{{_COMPONENT}}}size": str((button.width, button.height))}
            ElementTree.SubElement(application, "push-button", {"name": button.label, **place, **size})
        return AccessibilityTree(ElementTree.tostring(root, "unicode"), complete=True, nodes=1 + len(self.buttons))

    async def open_port(self, port: int) -> Path:
        """There are no ports."""
        raise DesktopError(f"the fake desktop has no port {port}: nothing listens on it; use kind 'xvfb'")
