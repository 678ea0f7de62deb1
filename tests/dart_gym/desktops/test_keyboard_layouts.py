"""Text and keys under keyboard layouts, xmodmap changes and locks: read back from programs, byte for byte.

The large version (`slow`) types `SIZE` random strings for each layout and program.
"""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import pytest

from dart_gym.core.actions import Click, KeyDown, KeyUp, Press, Type
from dart_gym.desktops.applications.devtools import DevTools
from dart_gym.desktops.base.desktop import SettlePolicy

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(300)]

LAYOUTS = ("us", "de", "fr", "ru", "dvorak", "jp", "xmodmap")
XMODMAP = ["-e", "keycode 38 = q Q", "-e", "keycode 24 = a A", "-e", "keycode 10 = exclam 1 bar at"]
ALPHABET = "".join(map(chr, range(33, 127))) + " äöüßéèçàñ€@µ²³ÄÉфывцяёЖЩ中文日本語かなカナ🎉’“”—…łşğΩπ"
SMALL, SIZE = 3, 500
WINDOWS = Path(__file__).parents[2] / "helpers/windows"
PAGE = "data:text/html,<textarea autofocus id=t spellcheck=false style='width:300px;height:200px'></textarea>"


def strings(count: int, layout: str) -> list[str]:
    rng = random.Random(layout)
    first = 'echo zy-/ [a] {b} "c" \\ | ~ ^ ` @ € é ß ? ы 中 Q1!'
    return [first] + ["".join(rng.choices(ALPHABET, k=rng.randint(1, 30))) for _ in range(count - 1)]


async def set_layout(desktop, layout: str) -> None:
    given = "us" if layout == "xmodmap" else layout
    assert (await desktop.execute(["setxkbmap", "-option", "", *given.split()])).returncode == 0
    if layout == "xmodmap":
        await desktop.execute(["xmodmap", *XMODMAP])


class Chromium:
    """A text area of a page."""

    async def open(self, start_desktop, until):
        self.desktop = await start_desktop(profile="browser")
        self.page = await DevTools.connect(self.desktop)
        await self.page.navigate(PAGE)
        await self.desktop.perform(Click(100, 100))
        self.until = until
        return self.desktop

    async def clear(self):
        await self.page.evaluate("t.value = ''; window.codes = []; onkeydown = e => { codes.push(e.code) }")

    async def read(self, expected: str) -> str:
        async def arrived():
            return len(await self.page.evaluate("t.value")) >= len(expected.encode("utf-16-le")) // 2

        try:
            await self.until(arrived, timeout=3)
        except AssertionError:
            pass  # what is there is shown by the comparison
        return await self.page.evaluate("t.value")


class Terminal:
    """`cat` behind a terminal's line discipline, which gives whole lines."""

    async def open(self, start_desktop, until):
        self.desktop = await start_desktop(width=800, height=600)
        self.until = until
        await self.desktop.launch(["gnome-terminal", "--", "sh", "-c", "stty raw -echo; cat > /tmp/got"])

        async def opened():
            return (await self.desktop.execute(["xdotool", "getactivewindow"])).returncode == 0

        await until(opened, timeout=30)
        await self.desktop.settle(SettlePolicy(quiet_ms=500, max_ms=5000))
        return self.desktop

    async def clear(self):
        await self.desktop.execute(["sh", "-c", ": > /tmp/got"])

    async def read(self, expected: str) -> str:
        async def arrived():
            return len((await self.desktop.read_file("/tmp/got")).lstrip(b"\0")) >= len(expected.encode())

        try:
            await self.until(arrived, timeout=3)
        except AssertionError:
            pass  # what is there is shown by the comparison
        return (await self.desktop.read_file("/tmp/got")).lstrip(b"\0").decode(errors="replace")


class Editor:
    """A document of an editor, which Ctrl+S writes."""

    def __init__(self, *command: str) -> None:
        self.command = command

    async def open(self, start_desktop, until):
        self.desktop = await start_desktop(width=800, height=600)
        self.until = until
        await self.prepare()
        await self.desktop.write_file("text.txt", b"start")
        await self.desktop.launch([*self.command, "text.txt"])

        async def opened():
            return b"text.txt" in (await self.desktop.execute(["xdotool", "getactivewindow", "getwindowname"])).stdout

        await until(opened, timeout=30)
        await self.desktop.settle(SettlePolicy(quiet_ms=300, max_ms=5000))
        return self.desktop

    async def prepare(self):
        """Put what the command needs on the desktop."""

    async def clear(self):
        for action in (Press(("ctrl", "a")), Press(("delete",))):
            await self.desktop.perform(action)

    async def read(self, expected: str) -> str:
        await self.desktop.perform(Press(("ctrl", "s")))

        async def saved():
            return (await self.desktop.read_file("text.txt")).decode(errors="replace") == expected

        try:
            await self.until(saved, timeout=3)
        except AssertionError:
            pass  # what is there is shown by the comparison
        return (await self.desktop.read_file("text.txt")).decode(errors="replace")


class QtEditor(Editor):
    """The tests' own editor: no editor of Debian uses the same Qt in all its versions."""

    program = "qt_editor.py"

    def __init__(self) -> None:
        super().__init__("/usr/bin/python3", self.program)

    async def prepare(self):
        await self.desktop.write_file(self.program, (WINDOWS / self.program).read_bytes())


PROGRAMS = {"chromium": Chromium, "terminal": Terminal, "gtk": lambda: Editor("mousepad"), "qt": QtEditor}


async def mistakes(program, desktop, layouts, count: int) -> list[tuple[str, str, str]]:
    wrong = []
    for layout in layouts:
        await set_layout(desktop, layout)
        for text in strings(count, layout):
            await program.clear()
            await desktop.perform(Type(text))
            got = await program.read(text)
            if got != text:
                wrong.append((layout, text, got))
    return wrong


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROGRAMS)
async def test_every_layout_types_what_is_asked_for(start_desktop, until, name):
    program = PROGRAMS[name]()
    desktop = await program.open(start_desktop, until)
    assert await mistakes(program, desktop, LAYOUTS, SMALL) == []


UNUSUAL = (
    *("us -variant intl", "br", "gr", "il", "in", "th", "de -variant neo", "fr -variant bepo", "jp -variant kana86"),
    *("us,ru,gr -option grp:caps_toggle", "us -option ctrl:swapcaps", "us -option shift:both_capslock"),
    *("us -option compose:ralt", "de -option lv3:caps_switch", "us -option keypad:atm"),
)
"""Dead keys where others have signs, scripts without Latin letters, more levels, groups, and keys in other places."""


async def test_unusual_layouts_type_what_is_asked_for_with_caps_lock_too(start_desktop, until):
    program = Terminal()
    desktop = await program.open(start_desktop, until)
    assert await mistakes(program, desktop, UNUSUAL, 1) == []
    await set_layout(desktop, "us")
    await desktop.perform(Press(("capslock",)))
    assert await mistakes(program, desktop, UNUSUAL, 1) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
async def test_500_strings_of_a_layout_arrive(start_desktop, until, name, layout):
    program = PROGRAMS[name]()
    desktop = await program.open(start_desktop, until)
    assert await mistakes(program, desktop, [layout], SIZE) == []


@pytest.fixture
async def page(start_desktop, until):
    program = Chromium()
    await program.open(start_desktop, until)
    await program.clear()
    yield program
    await program.page.close()


async def test_locks_and_held_shifts_change_no_text_and_stay(page):
    text = 'Az1!"zyäÄ@€ф'
    before = [
        [Press(("capslock",))],
        [Press(("numlock",))],
        [KeyDown("shift")],
        [KeyUp("shift"), Press(("capslock",)), Press(("numlock",))],
    ]
    for actions in before:
        for action in actions:
            await page.desktop.perform(action)
        await page.clear()
        await page.desktop.perform(Type(text))
        assert await page.read(text) == text
    await page.clear()
    for action in (Press(("capslock",)), Type("a"), Press(("a",)), Press(("shift", "b"))):
        await page.desktop.perform(action)
    assert await page.read("aaB") == "aaB"
    assert b"Caps Lock:   on" in (await page.desktop.execute(["xset", "q"])).stdout
    await page.desktop.perform(Press(("capslock",)))
    assert b"Caps Lock:   off" in (await page.desktop.execute(["xset", "q"])).stdout


async def test_another_group_changes_no_text(page):
    await page.desktop.execute(["setxkbmap", "us,ru", "-option", "grp:win_space_toggle"])
    for _ in range(3):
        await page.clear()
        await page.desktop.perform(Type("latin и кириллица"))
        await page.desktop.perform(Press(("z",)))
        assert await page.read("latin и кириллицаz") == "latin и кириллицаz"
        await page.desktop.perform(Press(("win", "space")))


@pytest.mark.parametrize("num_lock", [False, True])
async def test_the_number_pad_types_digits_and_operators(page, num_lock):
    if num_lock:
        await page.desktop.perform(Press(("numlock",)))
    keys = [f"num{digit}" for digit in range(10)] + ["decimal", "add", "subtract", "multiply", "divide"]
    for key in keys:
        await page.desktop.perform(Press((key,)))
    for action in (KeyDown("num7"), KeyUp("num7")):
        await page.desktop.perform(action)
    assert await page.read("0123456789.+-*/7") == "0123456789.+-*/7"
    codes = await page.page.evaluate("codes.filter(c => c != 'NumLock')")
    assert codes[:2] == ["Numpad0", "Numpad1"] and "ShiftLeft" not in codes


async def test_chords_reach_programs_under_every_layout(page):
    for layout in (*LAYOUTS, "gr"):
        await set_layout(page.desktop, layout)
        await page.clear()
        for action in (Type("abc"), Press(("ctrl", "a")), Press(("ctrl", "c")), Press(("end",)), Press(("ctrl", "v"))):
            await page.desktop.perform(action)
        assert (layout, await page.read("abcabc")) == (layout, "abcabc")


async def test_what_was_mapped_on_demand_survives_a_new_layout(page):
    for layout in ("us", "de", "us", "ru", "us"):
        await page.desktop.perform(Type("é中ł"))
        await set_layout(page.desktop, layout)
        await page.desktop.perform(Type("é中ł"))
    assert await page.read("é中ł" * 10) == "é中ł" * 10


async def test_a_layout_that_does_not_exist_changes_nothing(page):
    result = await page.desktop.execute(["setxkbmap", "no-such-layout"])
    await page.desktop.perform(Type("zy €"))
    assert result.returncode != 0 and await page.read("zy €") == "zy €"


def test_the_strings_have_no_sign_that_joins_with_others():
    assert not [character for character in ALPHABET if unicodedata.combining(character)]
