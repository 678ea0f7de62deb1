"""MiniWoB++ pages in the browser of a desktop, episode after episode, without restarting anything.

Invariants:
    - The first screenshot shows the new episode, and each later one shows what the last action did: the scenario
      waits for the page's own signs (see `page.js`), never for a time.
    - A page is loaded only when the task changes, or when an episode left it.
    - The score is the page's raw reward, which does not decay with time, cut to [0, 1]; 0 while the page has not
      given one.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import json
import time
from typing import Any

import numpy as np

from dart_gym.actions import Action, Click, Move, action_from_dict
from dart_gym.desktops.base import Desktop, DesktopSpec, SettlePolicy
from dart_gym.desktops.devtools import DevTools, DevToolsError
from dart_gym.errors import DesktopError, DesktopTimeoutError, TaskError
from dart_gym.outcomes import Evaluation, EvaluationStatus, TerminalState
from dart_gym.tasks.scenario import Prepared
from dart_gym.tasks.suites.miniwob import pages
from dart_gym.tasks.task import Task

DEVTOOLS_PORT = 1337
FRAME_TIMEOUT_S = 5.0
_FOLDER = ".dart/miniwob"
_SENTINEL = Click(button="middle", modifiers=("pause",))  # page.js tells what for
_BEACON_COLOR = (255, 0, 255)
_BEACON_POLL_S = 0.001
_LAYOUT_WIDTH = 320
_LISTEN_MS = (80, 160, 320, 640, 1280, 2560)
_NO_SETTLE = SettlePolicy(quiet_ms=0.0, max_ms=0.0)  # `after_action` waits for what it knows


class MiniWobScenario:
    """One desktop's browser and the MiniWoB++ episode in it."""

    def __init__(self) -> None:
        self._desktop: Desktop | None = None
        self._devtools: DevTools | None = None
        self._root_url = ""
        self._written: set[str] = set()
        self._page = ""  # what the browser shows; "" when nobody knows
        self._sentinels = 0  # how many the page has been sent
        self._done = False
        self._reward = 0.0
        self._left_page = False

    async def prepare(self, desktop: Desktop, task: Task, seed: int) -> Prepared:
        """Show a new episode of the task's page."""
        await self._attach(desktop)
        page = task.raw["page"]
        await desktop.release_inputs()
        await desktop.perform(Move(desktop.spec.width - 1, desktop.spec.height - 1))
        state = await self._start_episode(desktop, page, seed) if page == self._page else None
        if state is None:
            await self._load(desktop, page)
            state = await self._start_episode(desktop, page, seed)
        if state is None:
            raise DesktopError(f"the browser does not keep the page {page}: it may have crashed")
        if not state["visible"] or (state["width"], state["height"]) != layout_size(desktop.spec):
            raise DesktopError(f"the browser's window does not fill the screen ({state}); take a fresh desktop")
        self._done, self._reward, self._left_page = False, 0.0, False
        await self._await_frame(desktop)
        return Prepared(instruction=state["instruction"], settle=_NO_SETTLE, frame_ready=True)

    async def after_action(self, desktop: Desktop) -> bool:
        """Wait until the page has handled the action and the screen shows it; True when it has given its reward."""
        state = await self._ask(desktop, "dart.step({number})")
        if state is None:  # the action led out of the page (which `page.js` tries to prevent): the task is lost
            self._page, self._left_page, self._done = "", True, True
            return True
        self._done, self._reward = state["done"], float(state["reward"])
        if not self._done:
            await self._await_frame(desktop)
        return self._done

    async def evaluate(self, desktop: Desktop, terminal: TerminalState, actions: list[Action]) -> Evaluation:
        """The reward that the page gave."""
        score = score_of(self._done, self._reward) if terminal is not TerminalState.FAIL else 0.0
        detail = (
            "the page was left" if self._left_page else f"reward {self._reward:g}" if self._done else "not finished"
        )
        return Evaluation(EvaluationStatus.OK, score, f"miniwob/{pages.version()}", detail)

    async def oracle(self, desktop: Desktop) -> Action:
        """The next action of a perfect user of the page."""
        if self._devtools is None or not self._page:
            raise TaskError("there is no page to know the way on: call reset first")
        try:
            return action_from_dict(await self._devtools.evaluate(f"dart.oracle({json.dumps(self._page)})"))
        except (DevToolsError, ValueError) as error:
            raise TaskError(f"the oracle of miniwob/{self._page} does not know the way: {error}") from error

    async def close(self) -> None:
        """Let go of the browser."""
        devtools, self._devtools, self._desktop = self._devtools, None, None
        if devtools is not None:
            await devtools.close()

    async def _attach(self, desktop: Desktop) -> None:
        if self._desktop is desktop and self._devtools is not None:
            return
        await self.close()
        home = (await desktop.execute(["/bin/sh", "-c", 'printf %s "$HOME"'])).stdout.decode()
        self._root_url = f"file://{home}/{_FOLDER}"
        self._devtools = await DevTools.connect(desktop, port=DEVTOOLS_PORT)
        width, height = layout_size(desktop.spec)
        await self._devtools.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self._devtools.call("Page.bringToFront")  # gives the page the keyboard
        self._desktop, self._page, self._sentinels = desktop, "", 0
        self._written.clear()

    async def _load(self, desktop: Desktop, page: str) -> None:
        assert self._devtools is not None  # for the type checker: `_attach` came first
        for path in pages.files_of(page):
            if path not in self._written:
                await desktop.write_file(f"/home/user/{_FOLDER}/{path}", pages.read(path))
                self._written.add(path)
        await self._devtools.navigate(f"{self._root_url}/{pages.page_path(page)}")
        await self._devtools.evaluate(_script())
        await self._devtools.evaluate("dart.painted()")
        for sent, patience_ms in enumerate(_LISTEN_MS, start=1):
            await desktop.perform(_SENTINEL)
            state = await self._devtools.evaluate(f"dart.listens({sent}, {patience_ms})")
            if state["arrived"]:
                self._page, self._sentinels = page, state["sentinels"]
                return
        raise DesktopTimeoutError(f"the page {page} got no input within {sum(_LISTEN_MS)} ms after it was loaded")

    async def _start_episode(self, desktop: Desktop, page: str, seed: int) -> dict[str, Any] | None:
        return await self._ask(desktop, f"dart.reset({json.dumps(str(seed))}, {{number}})")

    async def _ask(self, desktop: Desktop, call: str) -> dict[str, Any] | None:
        """Call a function of the page once it has handled all input so far; None when the page is gone."""
        assert self._devtools is not None  # for the type checker: `_attach` came first
        await desktop.perform(_SENTINEL)
        self._sentinels += 1
        try:
            state = await self._devtools.evaluate(f"window.dart ? {call.format(number=self._sentinels)} : null")
        except DevToolsError:
            return None  # navigated away while it was asked
        if state is not None and not state["arrived"]:
            return None  # the page does not get the keyboard: it is not what the user sees
        return state

    async def _await_frame(self, desktop: Desktop) -> None:
        """Wait until the screen shows a frame that was drawn after the page switched its beacon on."""
        assert self._devtools is not None  # for the type checker: `_attach` came first
        await self._await_beacon(desktop, shown=True)
        self._sentinels = await self._devtools.evaluate(f"dart.hideBeacon({self._sentinels})")
        await self._await_beacon(desktop, shown=False)

    async def _await_beacon(self, desktop: Desktop, *, shown: bool) -> None:
        deadline = time.monotonic() + FRAME_TIMEOUT_S
        while np.any(np.all((await desktop.screenshot())[-1] == _BEACON_COLOR, axis=-1)) != shown:
            if time.monotonic() > deadline:
                raise DesktopTimeoutError(f"the browser drew no new frame within {FRAME_TIMEOUT_S:g} s")
            await asyncio.sleep(_BEACON_POLL_S)


def layout_size(spec: DesktopSpec) -> tuple[int, int]:
    """Width and height in pixels that pages are laid out for: they place dialogs for windows wider than the task."""
    return max(spec.width, _LAYOUT_WIDTH), spec.height


def score_of(done: bool, reward: float) -> float:
    """Score in [0, 1] of a raw reward in [-1, 1]: what is wrong is 0, not less. Pure."""
    return min(max(reward, 0.0), 1.0) if done else 0.0


def _script() -> str:
    folder = importlib.resources.files(__package__)
    return "".join((folder / name).read_text(encoding="utf-8") for name in ("page.js", "oracles.js"))
