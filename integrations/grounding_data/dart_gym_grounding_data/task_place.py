"""A task's start, of any suite or in OSWorld's format, on a real desktop as a place to explore: reset, act, look.

What ends an exploration's way is told as a screen's `trouble`: windows that closed, an application that does not
answer, one that asks for a password, another program or address that was reached, a desktop that failed.
"""

import dataclasses
import importlib.resources
import json
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import numpy as np

from dart_agent.grounding.candidate import Box
from dart_gym.core.actions import Action, Click, Press, Type
from dart_gym.core.errors import DesktopError
from dart_gym.desktops.applications.browser import DEVTOOLS_PORT
from dart_gym.desktops.applications.devtools import DevTools
from dart_gym.desktops.base.desktop import ActionError, Desktop, SettlePolicy
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.catalog.registry import make_scenario
from dart_gym.tasks.catalog.scenario import Scenario
from dart_gym.tasks.catalog.task import Task
from dart_gym_grounding_data.exploration_graph import Deed
from dart_gym_grounding_data.screen_elements import MOST, Element, Screen, elements_of

_SETTLE = SettlePolicy(quiet_ms=120.0, max_ms=2000.0, reply_quiet_ms=60.0)
_PAGE = importlib.resources.files(__package__).joinpath("assets/page_elements.js").read_text(encoding="utf-8")
_TREE = importlib.resources.files("dart_gym.desktops.applications").joinpath("accessibility_reader.py").read_bytes()
_STACK = b"""
from Xlib import X, display, error
shown = []
for window in reversed(display.Display().screen().root.query_tree().children):
    try:
        told, place = window.get_attributes(), window.get_geometry()
    except error.XError:
        continue  # it closed meanwhile
    if told.map_state == X.IsViewable and told.win_class == X.InputOutput:
        shown.append((place.x, place.y, place.width, place.height, told.override_redirect))
print("\\n" + json.dumps({"stack": shown, "spent_s": time.process_time()}))
"""
TYPED_TEXT = "word"
_READ_S = (6.0, 18.0)  # the second time it may take longer


class TaskPlace:
    """A `Place` on a desktop of its own, which every reset replaces; a bare one is given what accessibility needs.

    `left_out` counts elements that were no use, by the reason; `reading_s` is the processor time of the programs that
    read trees, `beginning_s` this process's while desktops were begun.
    """

    def __init__(self, task: Task, *, seed: int = 0) -> None:
        profile = "osworld" if task.desktop.profile == "bare" else task.desktop.profile
        self.spec = dataclasses.replace(task.desktop, profile=profile)
        self.desktop: Desktop | None = None
        self.page: DevTools | None = None
        self.left_out: Counter[str] = Counter()
        self.reading_s = self.beginning_s = 0.0
        self._task, self._seed, self._home = task, seed, frozenset[str]()
        self._scenario: Scenario | None = None

    async def reset(self) -> Screen:
        """Begin anew on a fresh desktop. Raises `DesktopError` or `TaskError`: it cannot be begun."""
        began = time.process_time()
        await self.close()
        desktop = self.desktop = make_desktop(self.spec)
        self._scenario = make_scenario(self._task.suite)
        await desktop.start()
        await self._scenario.prepare(desktop, self._task, self._seed)
        self.page = await DevTools.connect(desktop, DEVTOOLS_PORT) if self.spec.profile == "browser" else None
        self._home = frozenset()
        self.beginning_s += time.process_time() - began
        return await self.look()

    async def act(self, deed: Deed) -> Screen:
        """Do something, and look once the screen stands still."""
        try:
            first = Click(*deed.element.middle) if deed.element else Press(("escape",))
            for action in (first, Type(TYPED_TEXT)) if deed.kind == "type" else (first,):
                if await self.perform(action):
                    return dataclasses.replace(await self.look(), trouble="the task has ended")
            return await self.look()
        except (ActionError, DesktopError) as error:
            nothing = np.zeros((self.spec.height, self.spec.width, 3), np.uint8)
            return Screen(nothing, trouble=f"the desktop failed: {error}".splitlines()[0])

    async def perform(self, action: Action) -> bool:
        """Carry out an action until the screen stands still; whether it has ended the task. Raises `DesktopError`."""
        if self.desktop is None or self._scenario is None:
            raise DesktopError("the place was not begun, or is closed: reset it first")
        await self.desktop.perform(action)
        await self.desktop.settle(_SETTLE)
        return await self._scenario.after_action(self.desktop, action)

    async def look(self) -> Screen:
        """What is shown now. Raises `DesktopError`."""
        if self.desktop is None:
            raise DesktopError("the place was not begun, or is closed: reset it first")
        elements, homes, titles, trouble = await (self._read_page(self.page) if self.page else self._read(self.desktop))
        self._home = self._home or homes
        if any(element.role == "password-text" and element.front for element in elements):
            trouble = trouble or "the application asks for a password"
        if strange := sorted(homes - self._home - {""}):
            trouble = trouble or f"something else was reached: {strange[0]}"
        return Screen(await self.desktop.screenshot(), elements, titles, trouble)

    async def close(self) -> None:
        """End the desktop. Idempotent."""
        page, self.page, desktop, self.desktop = self.page, None, self.desktop, None
        scenario, self._scenario = self._scenario, None
        try:
            for link in (page, scenario):
                if link is not None:
                    await link.close()
        finally:
            if desktop is not None:
                await desktop.stop()

    async def _read_page(self, page: DevTools) -> tuple[tuple[Element, ...], frozenset[str], tuple[str, ...], str]:
        told: dict[str, Any] = await page.evaluate(_PAGE)
        rows, address = told["elements"][:MOST], urlsplit(told["url"])
        found = (
            Element(row["role"], row["name"], Box(*row["box"]), "", row["on"], True, row["number"]) for row in rows
        )
        return tuple(found), frozenset((f"{address.scheme}://{address.netloc}",)), (told["title"],), ""

    async def _read(self, desktop: Desktop) -> tuple[tuple[Element, ...], frozenset[str], tuple[str, ...], str]:
        """Tree and windows, by one program, for it takes longer to start than to read; again if it was too slow."""
        tree: dict[str, Any] = {"xml": "<desktop-frame/>", "complete": False}
        told: dict[str, Any] = {}
        for seconds in _READ_S:
            command = ["/usr/bin/python3", "-I", "-", "tree", f"{seconds}"]
            result = await desktop.execute(command, stdin=_TREE + _STACK, timeout=4 * seconds)
            answers = [json.loads(line) for line in result.stdout.splitlines()]
            tree, told = (answers + [tree, {}])[:2] if len(answers) != 1 else (answers[0], {})
            self.reading_s += told.get("spent_s", 0.0)
            if tree["complete"]:
                break
        stack: list[Any] = told.get("stack", [])
        elements, left_out = elements_of(tree["xml"], stack, (self.spec.width, self.spec.height))
        self.left_out += left_out
        shown = [application for application in ElementTree.fromstring(tree["xml"]) if len(application)]
        trouble = "" if tree["complete"] else "the application does not answer"
        if stack and all(free or width == 1 for _, _, width, _, free in stack):
            trouble = "the application closed"
        titles = tuple(top.get("name") or "" for application in shown for top in application)
        return elements, frozenset(application.get("name") or "" for application in shown), titles, trouble
