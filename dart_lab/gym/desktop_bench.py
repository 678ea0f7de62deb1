"""A step, a reset and an idle desktop, beside OSWorld's way on the same screen.

A step is: click, wait until the screen shows the outcome, take it. OSWorld's way is its client's pattern (POST an
action to `/execute`, pause 2 s, GET `/screenshot`) against a server that does what OSWorld's does, on the same desktop
with the same program; the version without the pause does not wait for the outcome at all.

Aims are those of the project; the numbers are medians, except the memory: `idle_mb` is one desktop alone, with all that
a server's desktops share, and `idle_mb_further` is what each one more takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Coroutine
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from dart_gym.core.actions import Click
from dart_gym.core.errors import DesktopError, DesktopTimeoutError, words_of
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.sessions.session import Session
from dart_gym.sessions.slot import Slot
from dart_gym.tasks.osworld.osworld_scenario import SETTLE
from dart_gym.tasks.screen.idleness import wait_until_idle
from dart_gym.tasks.screen.windows import wait_for_window
from dart_gym.utils.backoff import Pauses
from dart_lab.reporting.report import Aim, Report, median, percentile

WIDTH, HEIGHT = 1920, 1080
PAUSE_S = 2.0  # OSWorld's, after each action
PORT = 5000
STEPS = 60
STOCK_STEPS = 12
PAUSED_STEPS = 3
COLD_RESETS = 5
WARM_RESETS = 10
FURTHER = 3
AIMS = {
    "step_ms_p50": Aim(60.0, at_most=True),
    "step_vs_stock_paused": Aim(30.0, at_most=False),
    "step_vs_stock_unpaused": Aim(5.0, at_most=False),
    "reset_cold_s": Aim(2.0, at_most=True),
    "idle_mb": Aim(100.0, at_most=True),
}
SPEC = DesktopSpec(width=WIDTH, height=HEIGHT, profile="osworld")
TASK: dict[str, Any] = {"id": "bench", "instruction": "", "evaluator": {"func": "infeasible"}}
"""A task without set-up, so that a reset is the desktop's alone."""

Step = Callable[[int, int], Coroutine[Any, Any, None]]


async def measure(report_progress: Callable[[str], None]) -> Report:
    """Run the benchmark; takes about a minute."""
    keys: dict[str, float] = {}
    report_progress("cold resets, and memory of an idle desktop")
    keys["reset_cold_s"], keys["idle_mb"] = await _cold_resets()
    report_progress("desktops that idle side by side")
    keys["idle_mb_further"] = await _further_megabytes()
    report_progress("warm resets")
    keys["reset_warm_s"] = await _warm_resets()
    desktop = make_desktop(SPEC)
    await desktop.start()
    try:
        await desktop.launch(["python", "-c", _program("redraw_app.py")])
        await wait_for_window(desktop, "redraw", timeout=30.0)
        await wait_until_idle(desktop)
        report_progress("steps")
        ours = await _timed(_own_step(desktop), STEPS)
        report_progress("steps in OSWorld's way")
        stock = await _stock_client(desktop)
        unpaused = await _timed(lambda x, y: _stock_step(stock, x, y, 0.0), STOCK_STEPS)
        paused = await _timed(lambda x, y: _stock_step(stock, x, y, PAUSE_S), PAUSED_STEPS)
    finally:
        await desktop.stop()
    keys |= {
        "step_ms_p50": 1e3 * median(ours),
        "step_ms_p95": 1e3 * percentile(ours, 0.95),
        "stock_paused_ms_p50": 1e3 * median(paused),
        "stock_unpaused_ms_p50": 1e3 * median(unpaused),
        "step_vs_stock_paused": median(paused) / median(ours),
        "step_vs_stock_unpaused": median(unpaused) / median(ours),
    }
    notes = [
        f"{WIDTH}x{HEIGHT}; {STEPS} steps, {STOCK_STEPS} and {PAUSED_STEPS} in OSWorld's way;",
        f"{COLD_RESETS} cold resets, {WARM_RESETS} warm ones (a desktop that is kept);",
        f"settling: {SETTLE.reply_quiet_ms:g} ms without a change after the program's answer.",
    ]
    return Report("desktop", keys, AIMS, notes)


def _program(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


async def _timed(step: Step, count: int) -> list[float]:
    """Seconds of each step, after one that does not count; the pointer moves, so that no two are alike."""
    await step(200, 200)
    seconds = []
    for number in range(count):
        started = time.perf_counter()
        await step(300 + 37 * number % 1200, 300 + 23 * number % 500)
        seconds.append(time.perf_counter() - started)
    return seconds


def _own_step(desktop: Desktop) -> Step:
    previous: list[np.ndarray] = []

    async def step(x: int, y: int) -> None:
        await desktop.perform(Click(x, y))
        settled = await desktop.settle(SETTLE)
        frame = await desktop.screenshot()
        color = frame[5, 5]
        if previous and np.array_equal(color, previous[0]):
            raise DesktopError(f"the benchmark's program did not redraw by the time of the screenshot ({settled})")
        previous[:] = [color]

    return step


async def _stock_client(desktop: Desktop) -> str:
    """Start the server as OSWorld's; returns the path of a socket that leads to it, when it answers."""
    await desktop.launch(["python", "-c", _program("stock_server.py"), str(PORT)])
    path = str(await desktop.open_port(PORT))
    pauses = Pauses(time.monotonic() + 60.0, 0.05, 0.2)
    while True:
        try:
            await _ask(path, "GET", "/screenshot")
            return path
        except httpx.TransportError as error:
            late = DesktopTimeoutError(
                f"the server did not start ({words_of(error)}); is pyautogui there (`make apps`)?"
            )
            await pauses.wait(late, f"the server has not started yet: {words_of(error)}")


async def _stock_step(path: str, x: int, y: int, pause_s: float) -> None:
    code = f"import pyautogui; import time; pyautogui.FAILSAFE = False; pyautogui.click({x}, {y})"
    answer = json.loads(await _ask(path, "POST", "/execute", {"command": ["python", "-c", code], "shell": False}))
    if answer["returncode"]:
        raise DesktopError(f"OSWorld's way of clicking failed: {answer['error'].strip()}")
    await asyncio.sleep(pause_s)  # it is what is measured
    if not (await _ask(path, "GET", "/screenshot")).startswith(b"\x89PNG"):
        raise DesktopError("OSWorld's way of taking a screenshot gave no PNG")


async def _ask(path: str, method: str, route: str, content: dict[str, Any] | None = None) -> bytes:
    """One request on a connection of its own, as OSWorld's client makes them."""
    transport = httpx.AsyncHTTPTransport(uds=path, verify=False)
    async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=90.0) as client:
        response = await client.request(method, f"http://localhost{route}", json=content)
        response.raise_for_status()
        return response.content


async def _cold_resets() -> tuple[float, float]:
    """Seconds of a reset that boots a desktop, and the memory of one that does nothing, in MB."""
    seconds, memory = [], 0.0
    for _ in range(COLD_RESETS):
        slot = Slot()
        async with Session(slot) as session:
            started = time.perf_counter()
            await _reset(session, TASK)
            seconds.append(time.perf_counter() - started)
            memory = idle_megabytes(os.getpid())
        await slot.close()
    return median(seconds), memory


async def _further_megabytes() -> float:
    """Return the memory that one more idle desktop takes, in MB."""
    async with contextlib.AsyncExitStack() as stack:
        taken = []
        for _ in range(1 + FURTHER):
            slot = Slot()
            stack.push_async_callback(slot.close)
            await _reset(await stack.enter_async_context(Session(slot)), TASK)
            taken.append(idle_megabytes(os.getpid()))
    return (taken[-1] - taken[0]) / FURTHER


async def _warm_resets() -> float:
    """Seconds of a reset on a desktop that is kept."""
    seconds = []
    slot = Slot()
    async with Session(slot) as session:
        for _ in range(WARM_RESETS + 1):
            started = time.perf_counter()
            await _reset(session, "miniwob/click-test")
            seconds.append(time.perf_counter() - started)
    await slot.close()
    return median(seconds[1:])


async def _reset(session: Session, task: str | dict[str, Any]) -> None:
    result = await session.reset(task, seed=0)
    if result.terminal is not None:
        raise DesktopError(f"the benchmark's reset failed: {result.observation.action_error}")


def idle_megabytes(parent: int) -> float:
    """Return the memory of a process's descendants as proportional set sizes, so that shared memory counts once."""
    return sum(own_megabytes(pid) for pid in _descendants(parent))


def own_megabytes(pid: int) -> float:
    """Memory of one process, its proportional set size; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def _descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in map(int, children.read_text().split()):
                found |= {child} | _descendants(child)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended in between
    return found
