"""Real applications on real desktops: what is read of them, and every way in which they end an exploration."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from dart_gym_grounding_data.collector import bundled, collect
from dart_gym_grounding_data.exploration_graph import Deed
from dart_gym_grounding_data.explorer import Explorer
from dart_gym_grounding_data.task_place import TaskPlace

from dart_gym.core.errors import DesktopError
from dart_gym.tasks.catalog.registry import get_task
from dart_gym.tasks.catalog.task import Task
from dart_lab.agent.collector_bench import ClickCheck

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(300)]
ASK = "zenity --question --title=Ask --text='Is it so?'"


def task(command: str, window: str, **desktop: Any) -> Task:
    spec = {"width": 480, "height": 320, "profile": "osworld", **desktop}
    config = [{"type": "launch", "parameters": {"command": command, "shell": True}}]
    return get_task(
        {"id": "t", "instruction": "Look.", "config": config, "dart": {"desktop": spec, "ready": {"window": window}}}
    )


@pytest.fixture
async def place():
    made: list[TaskPlace] = []

    async def begin(command: str, window: str, **desktop: Any):
        made.append(TaskPlace(task(command, window, **desktop)))
        return made[0], await made[0].reset()

    yield begin
    for one in made:
        await one.close()


def button(screen, name: str) -> Deed:
    return Deed("click", next(element for element in screen.elements if element.name == name))


async def test_a_menu_is_opened_in_front_and_escape_leads_back(place):
    here, start = await place("mousepad", "Mousepad")
    opened = await here.act(button(start, "Edit"))
    front = [element.name for element in opened.elements if element.front]
    assert "Undo" in front and "File" not in front and not opened.trouble
    back = await here.act(Deed("key"))
    assert back.tree_key == start.tree_key


async def test_a_window_that_closes_is_told(place):
    here, start = await place(ASK, "Ask", profile="bare")
    assert {"Yes", "No"} <= {element.name for element in start.elements}
    assert (await here.act(button(start, "Yes"))).trouble == "the application closed"


@pytest.mark.thorough
async def test_an_application_that_hangs_is_told(place):
    here, start = await place(ASK, "Ask")
    assert here.desktop is not None
    await here.desktop.execute(["pkill", "-STOP", "-x", "zenity"])
    assert (await here.act(button(start, "Yes"))).trouble == "the application does not answer"


async def test_a_desktop_that_ends_is_told_and_a_reset_begins_anew(place):
    here, start = await place(ASK, "Ask")
    assert here.desktop is not None
    await here.desktop.stop()
    assert (await here.act(button(start, "Yes"))).trouble.startswith("the desktop failed")
    assert not (await here.reset()).trouble


async def test_without_accessibility_the_picture_alone_is_explored(place):
    here, start = await place("python3 -c \"import tkinter as t; t.Tk(className='Bare').mainloop()\"", "are")
    assert start.elements == () and not start.trouble and start.tree_key == "\n".join(start.titles)
    explorer = Explorer(here, 2)
    await explorer.run()
    assert len(explorer.found) == 2


async def test_a_password_is_not_typed(place):
    here, _ = await place("zenity --password --title=Secret", "Secret")
    with pytest.raises(DesktopError, match="asks for a password"):
        await Explorer(here, 3).run()


PAGE = """<title>Start</title><style>body{font-size:30px}</style><button>Press me</button>
<div style="position:relative"><a href="#a">hidden</a>
<div style="position:absolute;inset:0;background:white">over</div></div>
<a href="http://example.org/">away</a>"""


async def test_a_page_is_read_by_devtools_and_leaving_it_is_told():
    here = TaskPlace(get_task("miniwob/click-test"))
    try:
        start = await here.reset()
        assert "Click Me!" in {element.name for element in start.elements}
        assert here.page is not None
        await here.page.evaluate(f"document.body.innerHTML = {PAGE!r}")
        shown = await here.look()
        assert [element.name for element in shown.elements] == ["Press me", "away"]
        check = ClickCheck(100)
        explorer = Explorer(here, 1)
        node, _ = explorer.graph.find(shown, 0)
        assert await check(here, node) == [] and check.elements == {"right": 2, "wrong": 0, "silent": 0}
        left = await here.act(button(shown, "away"))
        await asyncio.sleep(0)
        assert not left.trouble  # the check keeps every press from the page
    finally:
        await here.close()


async def test_an_address_elsewhere_ends_the_way():
    here = TaskPlace(get_task("miniwob/click-test"))
    try:
        await here.reset()
        assert here.page is not None
        await here.page.navigate("data:text/html,<button>elsewhere</button>")
        assert (await here.look()).trouble == "something else was reached: data://"
    finally:
        await here.close()


@pytest.mark.slow
async def test_an_application_that_cannot_be_walked_is_named_and_the_next_one_is():
    broken = task("true", "Never")
    found = await collect([broken, bundled()["zenity-list"]], steps=2)
    assert len(found.problems) >= 1 and found.problems[0].startswith("t: ")
    assert {item.application for item in found.train} == {"zenity-list"} and not found.novel


@pytest.mark.thorough
async def test_elements_are_pressed_and_receive_it():
    check = ClickCheck(1000)
    found = await collect([bundled()["galculator"]], steps=1, check=check)
    assert check.elements["right"] >= 20 and check.elements["wrong"] == 0 and found.novel
    assert 0 < found.reading_s < 60 and 0 < found.beginning_s < 60  # processor time of this process and of the readers
