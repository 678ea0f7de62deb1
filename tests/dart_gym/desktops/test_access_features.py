"""Text and keys while the keyboard's access features (AccessX) are on, which a program of the desktop may switch on."""

from __future__ import annotations

import pytest

from dart_gym.core.actions import Click, Press, Type
from dart_gym.desktops.applications.devtools import DevTools

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(300)]

PAGE = "data:text/html,<textarea autofocus id=t spellcheck=false style='width:300px;height:200px'></textarea>"
SWITCH = """
import ctypes, sys
x = ctypes.CDLL("libX11.so.6")
x.XOpenDisplay.restype = ctypes.c_void_p
x.XkbChangeEnabledControls.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint]
x.XSync.argtypes = [ctypes.c_void_p, ctypes.c_int]
no_device = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: 0)
x.XSetErrorHandler(no_device)
display = x.XOpenDisplay(None)
mask = int(sys.argv[1])
for device in (0x100, *range(2, 8)):  # the core keyboard, and each device behind it
    x.XkbChangeEnabledControls(display, device, mask, mask)
x.XSync(display, 0)
"""
FEATURES = {"slow": 1 << 1, "bounce": 1 << 2, "sticky": 1 << 3, "mouse": 1 << 4, "access": 1 << 6}
"""Bits of `XkbControls` (X11/extensions/XKB.h)."""
TEXT = "aa Bb 11 éÉ {x} ~ Zz"


@pytest.fixture
async def area(start_desktop):
    """A desktop with a text area, and a function that switches features on there."""
    desktop = await start_desktop(profile="browser")
    page = await DevTools.connect(desktop)
    await page.navigate(PAGE)
    await desktop.perform(Click(100, 100))

    async def switch_on(feature: str) -> None:
        switched = await desktop.execute(["python3", "-c", SWITCH, str(FEATURES[feature])])
        assert switched.returncode == 0, switched.stderr

    return desktop, page, switch_on


async def text_of(page, until, expected: str) -> str:
    async def arrived():
        return len(await page.evaluate("t.value")) >= len(expected)

    try:
        await until(arrived, timeout=3)
    except AssertionError:
        pass  # what is there is shown by the comparison
    return await page.evaluate("t.value")


@pytest.mark.parametrize("feature", FEATURES)
async def test_text_and_keys_are_exact_with_access_features_on(area, until, feature):
    desktop, page, switch_on = area
    await switch_on(feature)
    await desktop.perform(Type(TEXT))
    await desktop.perform(Press(("shift",)))
    await desktop.perform(Type("end"))
    for digit in range(1, 10):
        await desktop.perform(Press((f"num{digit}",)))
    await desktop.perform(Press(("ctrl", "a")))
    await desktop.perform(Press(("right",)))
    await desktop.perform(Type("!"))
    expected = TEXT + "end123456789!"
    assert await text_of(page, until, expected) == expected


async def test_features_that_were_set_aside_are_on_again(area, until):
    desktop, page, switch_on = area
    await switch_on("slow")
    await desktop.perform(Type("a"))
    await desktop.execute(["xdotool", "key", "x"])
    await desktop.perform(Type("b"))
    assert await text_of(page, until, "ab") == "ab", "slow keys drop xdotool's short one"
