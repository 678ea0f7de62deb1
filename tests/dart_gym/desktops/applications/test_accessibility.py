"""The accessibility tree: OSWorld's tags, namespaces and attributes, and a partial tree instead of a hang."""

from __future__ import annotations

import time
from xml.etree import ElementTree

import pytest

from dart_gym.core.errors import DesktopError, DesktopTimeoutError
from dart_gym.desktops.applications.accessibility import read_tree, terminal_text
from dart_gym.desktops.base.desktop import CommandResult

NAMESPACE = "{https://accessibility.ubuntu.example.org/ns/%s}%s"
QUESTION = ["zenity", "--question", "--title", "Sure", "--text", "Delete\u0001 it? é 中"]


def named(tree, tag: str, name: str) -> ElementTree.Element | None:
    """The first element of a tag with a name."""
    found = (element for element in ElementTree.fromstring(tree.xml).iter(tag) if element.get("name") == name)
    return next(found, None)


@pytest.fixture
async def machine(start_desktop):
    return await start_desktop(width=800, height=600, env=(("NO_AT_BRIDGE", "0"),))


@pytest.mark.desktop
async def test_a_dialog_is_told_as_osworld_does(machine, until):
    await machine.launch(QUESTION)

    async def shown():
        tree = await machine.accessibility_tree()
        return tree if named(tree, "push-button", "Yes") is not None else None

    tree = await until(shown, 30)
    root = ElementTree.fromstring(tree.xml)
    assert root.tag == "desktop-frame" and [child.get("name") for child in root] == ["zenity"]
    assert tree.nodes == len(list(root.iter())) - 1
    button = named(tree, "push-button", "Yes")
    assert button.get(NAMESPACE % ("state", "showing")) == "true"
    assert button.get(NAMESPACE % ("state", "checked")) is None
    assert button.get(NAMESPACE % ("attributes", "toolkit")) == "gtk"
    assert button.get(NAMESPACE % ("action", "click_desc")) is not None
    x, y = map(int, button.get(NAMESPACE % ("component", "screencoord")).strip("()").split(","))
    width, height = map(int, button.get(NAMESPACE % ("component", "size")).strip("()").split(","))
    assert 0 < x < x + width < 800 and 0 < y < y + height < 600
    label = next(element for element in root.iter("label") if "Delete" in (element.text or ""))
    assert label.text.endswith("it? é 中")
    assert "\u0001" not in tree.xml


@pytest.mark.desktop
async def test_a_program_that_does_not_answer_leaves_a_partial_tree(machine, until):
    await machine.launch(QUESTION)
    await machine.launch(["zenity", "--info", "--text", "Quiet"])

    async def both():
        tree = await machine.accessibility_tree()
        return named(tree, "push-button", "Yes") is not None and named(tree, "push-button", "OK") is not None

    await until(both, 30)
    assert (await machine.execute(["pkill", "-STOP", "-f", "Quiet"])).returncode == 0
    started = time.monotonic()
    tree = await machine.accessibility_tree(timeout=10.0)
    assert time.monotonic() - started < 12.5
    assert not tree.complete
    assert named(tree, "push-button", "Yes") is not None and named(tree, "push-button", "OK") is None


@pytest.mark.desktop
async def test_without_time_there_is_an_empty_tree(machine):
    tree = await machine.accessibility_tree(timeout=0.0)
    assert ElementTree.fromstring(tree.xml).tag == "desktop-frame"


@pytest.mark.desktop
async def test_the_terminal_is_read(start_desktop, until):
    machine = await start_desktop(profile="osworld", width=1024, height=768)
    assert await terminal_text(machine) is None
    await machine.launch(["gnome-terminal", "--", "bash", "-c", "echo marked; exec sleep 1000"])

    async def text():
        found = await terminal_text(machine)
        return found if found and "marked" in found else None

    assert await until(text, 40) == "marked"


@pytest.mark.desktop
async def test_the_browser_has_the_name_that_getters_look_for(start_desktop, until):
    machine = await start_desktop(profile="osworld", width=1024, height=768)
    await machine.launch(["google-chrome", "about:blank"])

    async def bar():
        return named(await machine.accessibility_tree(), "entry", "Address and search bar") is not None

    await until(bar, 60)
    tree = await machine.accessibility_tree(timeout=20.0)
    assert named(tree, "application", "Google Chrome") is not None


class _Desktop:
    """Answers the reader's program with what a test says."""

    def __init__(self, answer: CommandResult | Exception) -> None:
        self.answer = answer

    async def execute(self, command, *, timeout=60.0, stdin=b""):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_a_reader_that_hangs_is_an_incomplete_tree():
    tree = await read_tree(_Desktop(DesktopTimeoutError("late")), 1.0)
    assert (tree.complete, tree.nodes) == (False, 0)
    assert await terminal_text(_Desktop(DesktopTimeoutError("late"))) is None


async def test_missing_programs_are_named():
    lacking = CommandResult(1, stderr=b"Traceback\nModuleNotFoundError: No module named 'gi'\n")
    with pytest.raises(DesktopError, match="No module named 'gi'.*apt-get install python3-gi"):
        await read_tree(_Desktop(lacking), 1.0)
