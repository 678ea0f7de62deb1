"""Right clicks in real programs: how many observations were taken too early, and how long a step takes.

A click is too early if its step was reported as settled, and a screenshot of the `WATCHED_S` that follow differs from
the observation in more than a caret that blinks. The screen is not touched meanwhile, so that everything which comes
later is something that the step should have waited for. A step is: click, wait until the screen has settled, take it.

`--load` starts busy processes next to the desktop. The load average in the report covers the whole machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dart_gym.core.actions import Click, Press
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec, SettlePolicy
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.osworld.osworld_scenario import SETTLE
from dart_gym.tasks.screen.idleness import wait_until_idle
from dart_gym.tasks.screen.windows import Geometry, activate, geometry, wait_for_window
from dart_lab.reporting.report import Aim, Report, median, percentile

WIDTH, HEIGHT = 1920, 1080
WATCHED_S, LOOK_S = 1.5, 0.05
CARET_PIXELS = 250  # a caret or a pointer of another shape has fewer, the entry of a menu has more
MOST_EARLY_SHARE = 0.01
OPEN_S = 90.0
FILES = 8
_REST = SettlePolicy(quiet_ms=500.0, max_ms=5000.0)
SPEC = DesktopSpec(width=WIDTH, height=HEIGHT, profile="osworld")


Area = tuple[float, float, float, float]
"""A part of a window: left, top, right and bottom as shares of its width and height."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is clicked on.

    Attributes:
        command: how it is started.
        title: a part of its window's title.
        button: which button clicks.
        area: where clicks go.
        delayed: where it draws something by a timer of its own, which nobody outside can know of: changes that come
            later there and nowhere else are counted apart.
    """

    command: tuple[str, ...]
    title: str
    button: Literal["left", "right"] = "right"
    area: Area = (0.3, 0.3, 0.6, 0.6)
    delayed: Area | None = None


PROGRAMS = {
    # what is selected is named in a line at the bottom 0.4 s after the click, which might become a double click
    "files": Program(("nautilus", "--new-window", "Documents"), "Documents", delayed=(0.5, 0.92, 1.0, 1.0)),
    "editor": Program(("mousepad", "Documents/file0.txt"), "Mousepad"),
    "menu": Program(("mousepad", "Documents/file0.txt"), "Mousepad", "left", (0.02, 0.02, 0.05, 0.03)),
    "browser": Program(("google-chrome", "Documents/page.html"), "bench page"),
    "office": Program(("libreoffice", "--calc"), "Untitled 1"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One click: seconds of its step, whether it settled, and after how many seconds the screen was seen to differ.

    `delayed`: whether it differed later only where the program draws by a timer.
    """

    seconds: float
    settled: bool
    late_s: float | None = None
    delayed: bool = False

    @property
    def early(self) -> bool:
        """Return whether the step was reported as settled before the screen was."""
        return self.settled and self.late_s is not None


async def measure(programs: Sequence[str], clicks: int, load: int, report_progress: Callable[[str], None]) -> Report:
    """Run the benchmark; takes two to three seconds a click."""
    steps: dict[str, list[Step]] = {}
    for name in programs:
        report_progress(f"{name}, {clicks} clicks, {load} busy processes")
        steps[name] = await _clicks(PROGRAMS[name], clicks, load)
    keys = {f"{name}_{key}": value for name in programs for key, value in summary(steps[name]).items()}
    aims = {f"{name}_early_share": Aim(MOST_EARLY_SHARE, at_most=True) for name in programs}
    notes = [
        f"{clicks} clicks in each program, {load} busy processes beside them, {WIDTH}x{HEIGHT};",
        f"early: a later screenshot within {WATCHED_S:g} s differs in more than {CARET_PIXELS} pixels.",
    ]
    return Report("settle", keys, aims, notes)


def summary(steps: Sequence[Step]) -> dict[str, float]:
    """The numbers of one program. Pure."""
    seconds = [step.seconds for step in steps]
    late = [step.late_s for step in steps if step.early and step.late_s is not None]
    return {
        "early_share": len(late) / len(steps),
        "early": len(late),
        "delayed": sum(step.delayed for step in steps),
        "unsettled": sum(not step.settled for step in steps),
        "late_ms_max": 1e3 * max(late, default=0.0),
        "step_ms_p50": 1e3 * median(seconds),
        "step_ms_p95": 1e3 * percentile(seconds, 0.95),
    }


async def _clicks(program: Program, clicks: int, load: int) -> list[Step]:
    desktop = make_desktop(SPEC)
    await desktop.start()
    try:
        for number in range(FILES):
            await desktop.write_file(f"Documents/file{number}.txt", b"one line of text\n" * (1 + number))
        await desktop.write_file("Documents/page.html", b"<title>bench page</title><p>Some words to click on.")
        await desktop.launch(list(program.command))
        window = await wait_for_window(desktop, program.title, timeout=OPEN_S)
        await wait_until_idle(desktop)
        await activate(desktop, window)
        place = await geometry(desktop, window)
        with _busy(load):
            return [await _click(desktop, program, place, number) for number in range(clicks)]
    finally:
        await desktop.stop()


async def _click(desktop: Desktop, program: Program, place: Geometry, number: int) -> Step:
    """Click, and watch what comes later; what the click opened is closed again."""
    left, top, right, bottom = within(place, program.area)
    x = left + (right - left) * (37 * number % 100) // 100
    y = top + (bottom - top) * (61 * number % 100) // 100
    started = time.perf_counter()
    await desktop.perform(Click(x, y, button=program.button))
    settled = await desktop.settle(SETTLE)
    frame = await desktop.screenshot()
    seconds = time.perf_counter() - started
    late_s, delayed = await differs_after(desktop, frame, program.delayed and within(place, program.delayed))
    await desktop.perform(Press(("escape",)))
    await desktop.settle(_REST)
    return Step(seconds, settled.stable, late_s, delayed and late_s is None)


def within(place: Geometry, area: Area) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a part of a window, in pixels of the screen. Pure."""
    left, top, right, bottom = area
    return (
        place.x + round(place.width * left),
        place.y + round(place.height * top),
        place.x + round(place.width * right),
        place.y + round(place.height * bottom),
    )


async def differs_after(
    desktop: Desktop, frame: NDArray[np.uint8], apart: tuple[int, int, int, int] | None
) -> tuple[float | None, bool]:
    """Seconds after which a screenshot differs from the given one (None: none does), and whether a part `apart` did."""
    started, delayed = time.perf_counter(), False
    while (seconds := time.perf_counter() - started) < WATCHED_S:
        later = await desktop.screenshot()
        if apart is not None:
            left, top, right, bottom = apart
            delayed |= differing_pixels(frame[top:bottom, left:right], later[top:bottom, left:right]) > CARET_PIXELS
            later[top:bottom, left:right] = frame[top:bottom, left:right]
        if differing_pixels(frame, later) > CARET_PIXELS:
            return seconds, delayed
        await asyncio.sleep(LOOK_S)
    return None, delayed


def differing_pixels(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> int:
    """Return the number of pixels in which two (H, W, 3) screens differ. Pure."""
    if np.array_equal(one, other):
        return 0
    return int((one != other).any(axis=2).sum())


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    """Run `count` processes that do nothing but use a processor."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
