"""Rows and words that are dragged and dropped in GTK, Qt and a page: by `Drag`, and by its parts as actions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dart_gym.core.actions import Click, Drag, MouseDown, MouseUp, Move, Press, Type
from dart_gym.desktops.applications.devtools import DevTools
from dart_gym.desktops.base.desktop import SettlePolicy

pytestmark = pytest.mark.desktop

WINDOWS = Path(__file__).parents[2] / "helpers/windows"


def whole(*path):
    return [Drag(tuple(path))]


def parts(first, *others):
    return [Move(*first), MouseDown(), *(Move(*point) for point in others), MouseUp()]


class Program:
    """A window of the toolkit's own program."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def open(self, start_desktop, until):
        self.desktop, self.until = await start_desktop(width=640, height=480), until
        await self.desktop.write_file(self.name, (WINDOWS / self.name).read_bytes())
        await self.desktop.launch(["/usr/bin/python3", self.name, "/tmp/state"])

        async def shown():
            return (await self.state())["shown"]

        await self.until(shown)

    async def state(self) -> dict:
        try:
            return json.loads(await self.desktop.read_file("/tmp/state"))
        except FileNotFoundError:
            return {"shown": False}


class Page:
    """A page in Chromium."""

    async def open(self, start_desktop, until):
        self.desktop, self.until = await start_desktop(profile="browser"), until
        self.devtools = await DevTools.connect(self.desktop)
        page = (WINDOWS / "page.html").read_text()
        await self.devtools.evaluate(f"document.open(), document.write({json.dumps(page)}), document.close()")

    async def state(self) -> dict:
        return await self.devtools.evaluate("state()")


PROGRAMS = {"gtk": lambda: Program("gtk_window.py"), "qt": lambda: Program("qt_window.py"), "html": Page}


@pytest.mark.parametrize("way", [whole, parts])
@pytest.mark.parametrize("name", PROGRAMS)
async def test_rows_and_words_are_dropped_by_a_drag_and_by_its_parts(start_desktop, until, name, way):
    program = PROGRAMS[name]()
    await program.open(start_desktop, until)
    await program.desktop.settle(SettlePolicy(quiet_ms=100, max_ms=5000))
    places = (await program.state())["places"]
    (x, first), (_, second), (_, third) = (places[f"row {number}"] for number in (1, 2, 3))
    lower_half = third + 2 * (second - first) // 5
    for action in way((x, first), (x + 9, second), (x, lower_half)):
        await program.desktop.perform(action)

    async def moved():
        return (await program.state())["rows"] == ["row 2", "row 3", "row 1", "row 4"]

    await until(moved, 10)
    select = [Press(("ctrl", "home")), *[Press(("shift", "right"))] * len("alpha")]
    for action in (Click(*places["end"]), *select, *way(places["word"], places["end"])):
        await program.desktop.perform(action)

    async def dropped():
        return (await program.state())["text"] == " beta gammaalpha"

    await until(dropped, 10)


async def test_a_press_of_the_next_action_makes_no_triple_click_of_a_double_click(start_desktop, until):
    async def osworld(**fields):
        return await start_desktop(profile="osworld", **fields)

    program = Program("gtk_window.py")
    await program.open(osworld, until)
    await program.desktop.settle(SettlePolicy(quiet_ms=100, max_ms=5000))
    place = (await program.state())["places"]["word"]
    for action in (Click(*place, count=2), MouseDown(), MouseUp(), Type("Z")):
        await program.desktop.perform(action)

    async def typed():
        return "Z" in (await program.state())["text"]

    await until(typed, 10)
    text = (await program.state())["text"]
    assert text.replace("Z", "") == "alpha beta gamma", "a triple click selects the line, which the letter replaces"
