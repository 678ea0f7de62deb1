"""MiniWoB++ pages in the browser of a desktop, episode after episode, without restarting anything.

Invariants:
    - The first screenshot shows the new episode, and each later one shows what the last action did: the scenario
      waits for the page's own signs (see `page.js`), never for a time.
    - A page is loaded only when the task changes, or when an episode left it.
    - The score is the page's raw reward, which does not decay with time, cut to [0, 1]; 0 while the page has not
      given one.
"""

import asyncio
import importlib.resources
import json
import time
from typing import Any

from dart_gym.core.actions import (
    Action,
    Click,
    Drag,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Press,
    Type,
    action_from_dict,
)
from dart_gym.core.errors import DesktopError, DesktopTimeoutError, TaskError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, TerminalState
from dart_gym.desktops.applications.devtools import DevTools, DevToolsError
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec, SettlePolicy
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_gym.tasks.catalog.scenario import Prepared
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.suites.miniwob import miniwob_pages

DEVTOOLS_PORT = 1337
FRAME_TIMEOUT_S = 5.0
_FOLDER = ".dart/miniwob"
_KEY, _CLICK, _BOTH = Press(("pause",)), Click(button="middle"), Click(button="middle", modifiers=("pause",))
"""Sentinels: page.js tells what for."""
_BEACON_POLL_S = 0.001
_LAYOUT_WIDTH = 320
_LISTEN_MS = (80, 160, 320, 640, 1280, 2560)
_NO_SETTLE = SettlePolicy(quiet_ms=0.0, max_ms=0.0)  # `after_action` waits for what it knows


class MiniWobScenario:
    """One desktop's browser and the MiniWoB++ episode in it."""

    def __init__(self) -> None:
        self._desktop: Desktop | None = None
        self.devtools: DevTools | None = None
        self._root_url = ""
        self._written: set[str] = set()
        self.page = ""  # what the browser shows; "" when nobody knows
        self._keys = self._clicks = 0  # how many sentinels the page has been sent
        self._done = False
        self._reward = 0.0
        self._left_page = False

    async def prepare(self, desktop: Desktop, task: Task, seed: int) -> Prepared:
        """Show a new episode of the task's page."""
        await self._attach(desktop)
        page = task.raw["page"]
        await desktop.release_inputs()
        await desktop.perform(Move(desktop.spec.width - 1, desktop.spec.height - 1))
        held_out = seed < FIRST_TRAINING_SEED if task.raw.get("keeps_apart") else None
        state = await self._start_episode(desktop, seed, held_out) if page == self.page else None
        if state is None:
            await self._load(desktop, page)
            state = await self._start_episode(desktop, seed, held_out)
        if state is None:
            raise DesktopError(f"the browser does not keep the page {page}: it may have crashed")
        if not state["visible"] or (state["width"], state["height"]) != layout_size(desktop.spec):
            raise DesktopError(f"the browser's window does not fill the screen ({state}); take a fresh desktop")
        self._done = False
        self._reward = 0.0
        self._left_page = False
        await desktop.release_inputs()  # once more: a copy that was under way has now become the clipboard
        await self._await_frame(desktop, state["signal"])
        return Prepared(instruction=state["instruction"], settle=_NO_SETTLE, frame_ready=True)

    async def after_action(self, desktop: Desktop, action: Action) -> bool:
        """Wait until the page has handled the action and the screen shows it; True when it has given its reward."""
        if looks_like_sentinel(action):
            await self._count_sentinels()
        state = await self._ask(desktop, sentinel_after(action), "dart.step({keys}, {clicks})")
        if state is None:  # the action led out of the page (which `page.js` tries to prevent): the task is lost
            self.page = ""
            self._left_page = True
            self._done = True
            return True
        self._done, self._reward = state["done"], float(state["reward"])
        if not self._done:
            await self._await_frame(desktop, state["signal"])
        return self._done

    async def evaluate(self, desktop: Desktop, terminal: TerminalState, actions: list[Action]) -> Evaluation:
        """The reward that the page gave."""
        score = score_of(self._done, self._reward) if terminal is not TerminalState.FAIL else 0.0
        detail = f"reward {self._reward:g}" if self._done else "not finished"
        if self._left_page:
            detail = "the page was left"
        return Evaluation(EvaluationStatus.OK, score, f"miniwob/{miniwob_pages.version()}", detail)

    async def oracle(self, desktop: Desktop) -> Action:
        """The next action of a perfect user of the page."""
        if self.devtools is None or not self.page:
            raise TaskError("there is no page to know the way on: call reset first")
        try:
            return action_from_dict(await self.devtools.evaluate(f"dart.oracle({json.dumps(self.page)})"))
        except (DevToolsError, ValueError) as error:
            raise TaskError(f"the oracle of miniwob/{self.page} does not know the way: {error}") from error

    async def close(self) -> None:
        """Let go of the browser."""
        devtools = self.devtools
        self.devtools = None
        self._desktop = None
        if devtools is not None:
            await devtools.close()

    async def _attach(self, desktop: Desktop) -> None:
        if self._desktop is desktop and self.devtools is not None:
            return
        await self.close()
        if not desktop.spec.margin:
            raise TaskError("MiniWoB++ runs on desktops that DART-Gym starts: the page gives signs below the screen")
        home = (await desktop.execute(["/bin/sh", "-c", 'printf %s "$HOME"'])).stdout.decode()
        self._root_url = f"file://{home}/{_FOLDER}"
        self.devtools = await DevTools.connect(desktop, port=DEVTOOLS_PORT)
        width, height = layout_size(desktop.spec)
        await self.devtools.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self.devtools.call("Page.bringToFront")  # gives the page the keyboard
        self._desktop, self.page = desktop, ""
        self._written.clear()

    async def _load(self, desktop: Desktop, page: str) -> None:
        assert self.devtools is not None  # for the type checker: `_attach` came first
        for path in miniwob_pages.files_of(page):
            if path not in self._written:
                await desktop.write_file(f"/home/user/{_FOLDER}/{path}", miniwob_pages.read(path))
                self._written.add(path)
        await self.devtools.navigate(f"{self._root_url}/{miniwob_pages.page_path(page)}")
        await self.devtools.evaluate(_script())
        images = [
            f"{self._root_url}/{path}" for path in miniwob_pages.files_of(page) if path.endswith(miniwob_pages.IMAGES)
        ]
        await self.devtools.evaluate(f"dart.load({json.dumps(images)})")
        await self.devtools.evaluate("dart.painted()")
        for sent, patience_ms in enumerate(_LISTEN_MS, start=1):
            await desktop.perform(_BOTH)
            if await self.devtools.evaluate(f"dart.listens({patience_ms})"):
                await self._count_sentinels(sent)
                self.page = page
                return
        raise DesktopTimeoutError(f"the page {page} got no input within {sum(_LISTEN_MS)} ms after it was loaded")

    async def _start_episode(self, desktop: Desktop, seed: int, held_out: bool | None) -> dict[str, Any] | None:
        call = f"dart.reset({json.dumps(str(seed))}, {{keys}}, {{clicks}}, {json.dumps(held_out)})"
        return await self._ask(desktop, _CLICK, call)

    async def _count_sentinels(self, sent: int = -1) -> None:
        """Take the page's count, once it is `sent` of each kind or does not grow any more."""
        assert self.devtools is not None  # for the type checker: `_attach` came first
        try:
            seen = await self.devtools.evaluate(f"window.dart ? dart.settled({sent}) : null")
        except DevToolsError:
            return  # the page is gone, which the next question will find
        if seen is not None:
            self._keys, self._clicks = seen["keys"], seen["clicks"]

    async def _ask(self, desktop: Desktop, sentinel: Press | Click, call: str) -> dict[str, Any] | None:
        """Call a function of the page once it has handled all input so far; None when the page is gone."""
        assert self.devtools is not None  # for the type checker: `_attach` came first
        await desktop.perform(sentinel)
        self._keys += sentinel is not _CLICK
        self._clicks += sentinel is not _KEY
        known = call.format(keys=self._keys, clicks=self._clicks)
        try:
            state = await self.devtools.evaluate(f"window.dart ? {known} : null")
        except DevToolsError:
            return None  # navigated away while it was asked
        if state is not None and not state["arrived"]:
            return None  # the page does not get the keyboard: it is not what the user sees
        return state

    async def _await_frame(self, desktop: Desktop, signal: int) -> None:
        """Wait until the screen shows the state with which the page gave a signal."""
        color, deadline = (signal, 255 - signal, 255), time.monotonic() + FRAME_TIMEOUT_S
        while tuple((await desktop.read_margin())[0, 0].tolist()) != color:
            if time.monotonic() > deadline:
                raise DesktopTimeoutError(f"the browser drew no new frame within {FRAME_TIMEOUT_S:g} s")
            await asyncio.sleep(_BEACON_POLL_S)


def layout_size(spec: DesktopSpec) -> tuple[int, int]:
    """Width and height in pixels of the page: it places dialogs for windows wider than the task."""
    return max(spec.width, _LAYOUT_WIDTH), spec.drawn_height


def sentinel_after(action: Action) -> Press | Click:
    """Return what tells that the page has handled an action: it comes in after the action's own keys or clicks. Pure.

    Keys only after keys: a click that they overtake would look like a move of the keyboard, with its focus ring.
    """
    if isinstance(action, (Type, Press, KeyDown, KeyUp)):
        return _KEY
    return _BOTH if isinstance(action, Click) and action.modifiers else _CLICK


def looks_like_sentinel(action: Action) -> bool:
    """Return whether the page will count a policy's action as a sentinel. Pure."""
    match action:
        case Click():
            return action.button == "middle" or "pause" in action.modifiers
        case Drag() | MouseDown() | MouseUp():
            return action.button == "middle"
        case Press():
            return "pause" in action.keys
        case KeyDown() | KeyUp():
            return action.key == "pause"
    return False


def score_of(done: bool, reward: float) -> float:
    """Score in [0, 1] of a raw reward in [-1, 1]: what is wrong is 0, not less. Pure."""
    return min(max(reward, 0.0), 1.0) if done else 0.0


def _script() -> str:
    folder = importlib.resources.files(__package__)
    return "".join((folder / name).read_text(encoding="utf-8") for name in ("page.js", "oracles.js"))
