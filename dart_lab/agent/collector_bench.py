"""The collector's pairs checked by pressing: the receiver must be the element that was meant; and their rate.

Programs tell by accessibility who was focused, pressed, armed, checked, selected or expanded, a page tells by the
event's target. The element that answers must lie under the point; a pair without an answer is neither right nor wrong.
Elements that prove wrong are left out of the set that is written.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dart_gym_grounding_data.collector import bundled, collect, task_named
from dart_gym_grounding_data.exploration_graph import Node
from dart_gym_grounding_data.pairs import phrases
from dart_gym_grounding_data.screen_elements import TYPED, Element
from dart_gym_grounding_data.task_place import TaskPlace

from dart_agent.grounding.candidate import Box
from dart_gym.core.actions import MouseDown, MouseUp, Move
from dart_gym.core.errors import DesktopError
from dart_gym.utils.rates import wilson_interval
from dart_lab.reporting.report import Aim, Report

_SCRIPT = Path(__file__).with_name("press_elements.py").read_bytes()
_HOW = {"menu": "click", "menu-item": "hover", "check-menu-item": "hover", "radio-menu-item": "hover"}
_AROUND = frozenset(
    "frame dialog window panel filler scroll-pane application menu-bar page-tab-list tool-bar table list tree".split()
)
_NEAR, _EACH_S = 4.0, 2.0
# Notes which element of the page receives a press, and hides the press from the page.
_PAGE = """(() => {
  if (window.__pressed !== undefined) return;
  window.__pressed = null;
  const wanted = 'a[href],button,input,select,textarea,summary,[role],[onclick],[tabindex]';
  for (const kind of ['pointerdown', 'mousedown', 'mouseup', 'pointerup', 'click'])
    addEventListener(kind, event => {
      if (event.button !== 0) return;
      if (!kind.startsWith('pointer')) event.preventDefault();  // a pointer's would suppress the mouse's
      event.stopImmediatePropagation();
      if (kind !== 'pointerdown') return;
      const r = (event.target.closest(wanted) || event.target).getBoundingClientRect();
      window.__pressed = [r.left, r.top, r.width, r.height];
    }, {capture: true});
})()"""
# What was pressed, once the page was told.
_FELT = """new Promise(done => {
  const end = performance.now() + 3000;
  const look = () => window.__pressed || performance.now() > end ? done(window.__pressed) : setTimeout(look, 5);
  look();
})"""
Told = Sequence[tuple[str, str, Sequence[float]]]


def _verdict(element: Element, felt: Sequence[tuple[str, str, Sequence[float]]]) -> str:
    """Return whether a press was felt by its element ("right"), by others only ("wrong"), or by none ("silent")."""
    if not felt:
        return "silent"
    return "right" if any(_is(element, one) for one in felt) else "wrong"


@dataclass(slots=True)
class ClickCheck:
    """Counts of elements and of pairs; `wrong_ones` names elements that received an event for another one.

    `seconds` passed, and `spent_s` of this process's time went, into the check.
    """

    most: int
    elements: dict[str, int] = field(default_factory=lambda: {"right": 0, "wrong": 0, "silent": 0})
    pairs: dict[str, int] = field(default_factory=lambda: {"right": 0, "wrong": 0, "silent": 0})
    wrong_ones: list[str] = field(default_factory=list)
    seconds: float = 0.0
    spent_s: float = 0.0
    _seen: set[tuple[TaskPlace, str, Box]] = field(default_factory=set)

    async def __call__(self, place: TaskPlace, node: Node) -> Collection[Element]:
        """Press what a new screen has in front, until `most` pairs were decided; those that are wrong."""
        began = time.monotonic()
        spent = time.process_time()
        size = (place.spec.width, place.spec.height)
        chosen = []
        for element in node.screen.elements:
            seen = place, element.key, element.box
            if element.front and element.enabled and element.role != "combo-box" and seen not in self._seen:
                if phrases(element, size) and self.pairs["right"] + self.pairs["wrong"] < self.most:
                    chosen.append(element)
                    self._seen.add(seen)
        wrong = []
        for element, told in zip(chosen, await _press(place, chosen), strict=True):
            felt = [one for one in told if one[0] not in _AROUND and _around(one[2]).contains(*element.middle)]
            verdict = _verdict(element, felt)
            self.elements[verdict] += 1
            self.pairs[verdict] += len(phrases(element, size))
            if verdict == "wrong":
                wrong.append(element)
                self.wrong_ones.append(f"{element.role} {element.name!r} at {element.middle}: {felt[0]}")
        self.seconds += time.monotonic() - began
        self.spent_s += time.process_time() - spent
        return wrong


async def _press(place: TaskPlace, elements: Sequence[Element]) -> list[Told]:
    """Return which elements felt a press on the middle of each element."""
    desktop = place.desktop
    if desktop is None or not elements:
        return [()] * len(elements)
    if place.page is None:
        opened = any(element.role.endswith("menu-item") for element in elements)  # to click would close the menu
        hows = ["hover" if opened else _HOW.get(element.role, "press") for element in elements]
        points = json.dumps([(*element.middle, how) for element, how in zip(elements, hows, strict=True)])
        limit = 10 + _EACH_S * len(elements)
        result = await desktop.execute(["/usr/bin/python3", "-I", "-", points], stdin=_SCRIPT, timeout=limit)
        if result.returncode:
            raise DesktopError(f"elements could not be pressed: {result.stderr.decode()[-300:]}")
        told: list[Told] = json.loads(result.stdout)
        return told
    await place.page.evaluate(_PAGE)
    answers: list[Told] = []
    for element in elements:
        await place.page.evaluate("window.__pressed = null")
        for action in (Move(*element.middle), MouseDown(), MouseUp()):
            await place.perform(action)
        box = await place.page.evaluate(_FELT)
        answers.append([("", "", box)] if box else [])
    return answers


def _is(element: Element, told: tuple[str, str, Sequence[float]]) -> bool:
    """Return whether the element that was told of the press is this one, or the field that it is a part of."""
    role, name, place = told
    if element.name and role == element.role and " ".join(name.split()) == element.name:
        return True
    box, mine = _around(place), element.box
    inside = box.contains(mine.left, mine.top) and box.contains(mine.right, mine.bottom)
    return inside and (role in ("", element.role) or (role in TYPED and element.role in TYPED))


def _around(place: Sequence[float]) -> Box:
    left, top, width, height = place
    return Box(left - _NEAR, top - _NEAR, left + width + _NEAR, top + height + _NEAR)


def measure(names: Sequence[str], steps: int, most: int, out: Path | None) -> Report:
    """Collect with the check, and write the set."""
    check = ClickCheck(most)
    began, spent = time.monotonic(), time.process_time()
    found = asyncio.run(collect([task_named(name) for name in names or bundled()], steps=steps, check=check))
    seconds = time.monotonic() - began - check.seconds
    spent_s = time.process_time() - spent - check.spent_s - found.beginning_s + found.reading_s
    if out is not None:
        found.write(out)
    decided = check.pairs["right"] + check.pairs["wrong"]
    low, high = wilson_interval(check.pairs["right"], decided) if decided else (0.0, 1.0)
    written = len(found.train) + len(found.novel)
    keys: dict[str, Any] = {
        "ground.pairs_right": check.pairs["right"] / max(1, decided),
        "ground.pairs_right.low": low,
        "ground.pairs_right.high": high,
        "ground.pairs_checked": decided,
        "ground.pairs": written,
        "ground.pairs_novel": len(found.novel),
        "ground.pairs_per_minute": 60 * written / seconds,
        "ground.pairs_per_core_minute": 60 * written / spent_s,
        "ground.pairs_reading_share": found.reading_s / spent_s,
        **{f"ground.elements_{verdict}": count for verdict, count in check.elements.items()},
    }
    aims = {"ground.pairs_right": Aim(0.98, at_most=False), "ground.pairs_per_core_minute": Aim(1000, at_most=False)}
    how = "a core's minute: processor time of this process and of the readers, without presses and desktops' starts"
    return Report("collector", keys, aims=aims, notes=[how, *found.lines, *found.problems, *check.wrong_ones])
