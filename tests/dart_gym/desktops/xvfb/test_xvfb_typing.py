"""Texts and keys that arrive in real programs: a GTK entry and a page in Chromium."""

import pytest

from dart_gym.core.actions import Click, KeyDown, KeyUp, Press, Type
from dart_gym.desktops.applications.devtools import DevTools
from dart_gym.desktops.base.desktop import ActionError, DesktopSpec, SettlePolicy
from dart_gym.desktops.xvfb.x_keys import XKeys
from dart_gym.desktops.xvfb.xvfb_desktop import XvfbDesktop

pytestmark = pytest.mark.desktop
UNICODE = 'Hello, <World>! ("x") ~`|\\{} é ñ ß ÀÉ 中文 Привет שלום 🎉 € ’ a\u0301'
MANY = "".join(chr(0x4E00 + i) for i in range(70))
SETTLE = SettlePolicy(quiet_ms=100, max_ms=3000)


async def open_entry(desktop, until) -> None:
    """Open a GTK dialog with an entry that writes its text to /tmp/text, and wait until it has the focus."""
    await desktop.launch(["sh", "-c", "zenity --entry --text=Name > /tmp/partial && mv /tmp/partial /tmp/text"])

    async def focused():
        result = await desktop.execute(["sh", "-c", "xdotool getwindowfocus getwindowname"])
        return b"entry" in result.stdout

    await until(focused)
    await desktop.settle(SETTLE)


async def text_of_entry(desktop, until) -> str:
    async def written():
        try:
            return await desktop.read_file("/tmp/text")
        except FileNotFoundError:
            return None

    return (await until(written)).decode()


@pytest.mark.parametrize("text", [UNICODE, MANY + MANY[::-1]], ids=["unicode", "many"])
async def test_a_gtk_entry_gets_the_text(start_desktop, until, text):
    desktop = await start_desktop()
    await open_entry(desktop, until)
    await desktop.perform(Type(text))
    await desktop.perform(Type("\n"))
    assert await text_of_entry(desktop, until) == text + "\n"


async def test_a_map_that_changes_right_after_the_keys_were_struck_changes_no_text(until, monkeypatch):
    desktop = XvfbDesktop(DesktopSpec(width=320, height=240))  # in this process, where its map can be changed in time
    await desktop.start()
    try:
        await open_entry(desktop, until)
        strike = XKeys.strike

        def strike_and_change(keys, strokes):
            strike(keys, strokes)
            for keycode in range(24, 60):
                keys.display.change_keyboard_mapping(keycode, [(ord("x"), ord("X"))])

        monkeypatch.setattr(XKeys, "strike", strike_and_change)
        await desktop.perform(Type("é中 yes"))
        await desktop.execute(["setxkbmap", "us"])
        monkeypatch.undo()
        await desktop.perform(Type("\n"))
        assert await text_of_entry(desktop, until) == "é中 yes\n"
    finally:
        await desktop.stop()


async def test_keys_and_chords_edit_a_gtk_entry(start_desktop, until):
    desktop = await start_desktop()
    await open_entry(desktop, until)
    for action in (
        *(Type("wrong"), Press(("ctrl", "a")), Type("right"), Press(("home",)), Press(("shift", "end"))),
        *(Press(("ctrl", "x")), Press(("ctrl", "v")), Press(("ctrl", "v")), Press(("backspace",)), Press(("<",))),
        *(KeyDown("shift"), Press(("a",)), KeyUp("shift"), Press(("a",)), Press(("é",)), Press(("enter",))),
    ):
        await desktop.perform(action)
    assert await text_of_entry(desktop, until) == "rightrigh<Aaé\n"


@pytest.mark.thorough
async def test_chromium_gets_texts_and_stays_on_its_page(start_desktop, until):
    desktop = await start_desktop(profile="browser")
    devtools = await DevTools.connect(desktop)
    page = "data:text/html,<textarea autofocus id=t style='width:300px;height:200px'></textarea>"
    await devtools.navigate(page)
    await desktop.perform(Click(100, 100))
    for text in (UNICODE, MANY, MANY[::-1] + MANY, "two\nlines", "A" * 3000 + "z"):
        await devtools.evaluate("t.value = ''")
        await desktop.perform(Type(text))

        async def arrived(text=text):
            return len(await devtools.evaluate("t.value")) >= len(text)

        await until(arrived)
        assert await devtools.evaluate("t.value") == text
    assert await devtools.evaluate("location.protocol") == "data:"
    await devtools.close()


async def test_what_cannot_be_typed_is_an_action_error_and_nothing_is_pressed(start_desktop):
    desktop = await start_desktop()
    with pytest.raises(ActionError, match="U\\+0007"):
        await desktop.perform(Type("ab\x07"))
