"""The browser profile: the pointer's actions as a page sees them, DevTools, and Chromium's failures."""

import asyncio
import string

import numpy as np
import pytest

from dart_gym.core.actions import Click, Drag, KeyDown, MouseDown, MouseUp, Move, Press, Scroll
from dart_gym.core.errors import DesktopError
from dart_gym.desktops.applications import browser
from dart_gym.desktops.applications.devtools import DevTools, DevToolsError
from dart_gym.desktops.base.desktop import DesktopSpec, SettlePolicy
from dart_gym.desktops.input.carried_over import leaves_traces
from dart_gym.desktops.xvfb.xvfb_desktop import XvfbDesktop
from tests.helpers.desktop_end import launch_the_end

pytestmark = pytest.mark.desktop

RECORDER = """data:text/html,<body style="margin:0;height:3000px;background:white"><script>
var log = [];
for (const kind of ['mousedown', 'mouseup', 'mousemove', 'click', 'dblclick', 'contextmenu', 'wheel'])
  document.addEventListener(kind, e => { log.push([kind, e.clientX, e.clientY, e.button, e.detail, e.ctrlKey,
    Math.sign(e.deltaX || 0), Math.sign(e.deltaY || 0)]); if (kind == 'contextmenu') e.preventDefault() });
</script>"""


class Page:
    """A page that records what it gets."""

    def __init__(self, desktop, devtools, until):
        self.desktop, self.devtools, self.until = desktop, devtools, until

    async def perform(self, action, kind: str, count: int = 1):
        """Carry out an action and return the events, once those of a kind have come."""
        await self.devtools.evaluate("log = []")
        await self.desktop.perform(action)

        async def arrived():
            events = await self.devtools.evaluate("log")
            return events if sum(event[0] == kind for event in events) >= count else None

        return [event for event in await self.until(arrived) if event[0] == kind]


@pytest.fixture
async def page(start_desktop, until):
    desktop = await start_desktop(profile="browser")
    devtools = await DevTools.connect(desktop)
    await devtools.navigate(RECORDER)
    yield Page(desktop, devtools, until)
    await devtools.close()


async def test_the_kiosk_covers_the_screen(start_desktop):
    desktop = await start_desktop(profile="browser", width=168, height=224)
    devtools = await DevTools.connect(desktop)
    assert await devtools.evaluate("[innerWidth, innerHeight, devicePixelRatio, location.href]") == [
        *(168, 224, 1),
        "about:blank",
    ]
    await devtools.navigate("data:text/html,<body style='margin:0;background:rgb(1,200,3)'>")
    await desktop.perform(Move(160, 220))
    await desktop.settle(SettlePolicy())
    assert ((await desktop.screenshot())[:200, :150] == (1, 200, 3)).all()
    await devtools.close()


async def test_clicks_reach_the_page_at_their_point(page):
    assert (await page.perform(Click(37, 91), "click"))[0][:5] == ["click", 37, 91, 0, 1]
    assert (await page.perform(Click(0, 0), "click"))[0][1:3] == [0, 0]
    assert (await page.perform(Click(319, 239), "click"))[0][1:3] == [319, 239]
    assert (await page.perform(Click(50, 60, count=2), "dblclick"))[0][:5] == ["dblclick", 50, 60, 0, 2]
    assert (await page.perform(Click(10, 20, count=3), "click", 3))[2][4] == 3
    assert (await page.perform(Click(5, 6, button="right"), "contextmenu"))[0][:4] == ["contextmenu", 5, 6, 2]
    assert (await page.perform(Click(5, 6, button="middle"), "mousedown"))[0][3] == 1
    assert (await page.perform(Click(70, 80, modifiers=("ctrl",)), "click"))[0][5] is True
    assert (await page.perform(Click(90, 100), "click"))[0][5] is False
    await page.desktop.perform(Move(200, 210))
    assert (await page.perform(Click(), "click"))[0][1:3] == [200, 210]


async def test_drags_and_wheel_reach_the_page(page):
    moves = await page.perform(Drag(((20, 30), (120, 30), (120, 130))), "mouseup")
    assert moves[0][1:3] == [120, 130]
    events = await page.devtools.evaluate("log")
    down = next(event for event in events if event[0] == "mousedown")
    between = [event for event in events[events.index(down) :] if event[0] == "mousemove"]
    assert down[1:3] == [20, 30] and len(between) >= 3
    wheel = await page.perform(Scroll(100, 100, dy=2), "wheel", 2)
    assert wheel[0][6:] == [0, 1]
    assert (await page.perform(Scroll(100, 100, dy=-1), "wheel"))[0][6:] == [0, -1]
    assert (await page.perform(Scroll(100, 100, dx=1), "wheel"))[0][6:] == [1, 0]


async def test_things_can_be_dragged_and_dropped(page):
    await page.devtools.navigate(
        """data:text/html,<body style="margin:0"><div id=a draggable=true style="width:60px;height:60px">A</div>
        <div id=b style="position:absolute;left:200px;top:100px;width:80px;height:80px">B</div><script>
        var dropped = ''; a.ondragstart = e => e.dataTransfer.setData('text', 'thing'); b.ondragover = e =>
        e.preventDefault(); b.ondrop = e => { dropped = e.dataTransfer.getData('text'); e.preventDefault() }</script>"""
    )
    await page.desktop.perform(Drag(((30, 30), (240, 140))))

    async def dropped():
        return await page.devtools.evaluate("dropped")

    assert await page.until(dropped) == "thing"


async def test_held_buttons_and_keys_can_be_released_at_once(page):
    await page.desktop.perform(Move(30, 40))
    await page.perform(MouseDown(), "mousedown")
    assert (await page.perform(MouseUp(), "mouseup"))[0][1:3] == [30, 40]
    await page.perform(MouseDown(), "mousedown")
    await page.desktop.perform(KeyDown("ctrl"))
    await page.desktop.release_inputs()
    assert (await page.perform(Click(50, 50), "click"))[0][5] is False


async def test_an_animation_does_not_settle_and_a_late_change_is_waited_for(page):
    await page.devtools.navigate(
        """data:text/html,<style>@keyframes k{from{left:0}to{left:200px}}</style><div style="position:absolute;
        width:50px;height:50px;background:red;animation:k 1s linear infinite alternate"></div>"""
    )

    async def painted():
        return tuple((await page.desktop.screenshot())[20, 225]) == (255, 0, 0)

    await page.until(painted)
    moving = await page.desktop.settle(SettlePolicy(quiet_ms=400, max_ms=900))
    assert not moving.stable and 0.9 <= moving.waited_s < 2.0
    await page.devtools.navigate(
        "data:text/html,<body onclick='setTimeout(() => document.body.style.background = `blue`, 60)'>hello"
    )
    await page.desktop.settle(SettlePolicy(quiet_ms=100))
    await page.desktop.perform(Click(100, 100))
    assert (await page.desktop.settle(SettlePolicy(quiet_ms=250))).stable
    assert tuple((await page.desktop.screenshot())[200, 300]) == (0, 0, 255)


async def test_what_leaves_no_traces_with_ctrl_changes_nothing_in_the_browser(page, until):
    """Every character with Ctrl that `leaves_traces` lets pass: no tab, dialog, bar, zoom or other page comes of it."""
    await page.devtools.navigate("data:text/html,<script>keys = []; onkeydown = e => keys.push(e.key)</script>")
    await page.desktop.perform(Click(100, 100))

    async def seen() -> object:
        page_state = "[devicePixelRatio, innerWidth, innerHeight, location.href, history.length, document.hasFocus()]"
        targets = (await page.devtools.call("Target.getTargets"))["targetInfos"]
        return await page.devtools.evaluate(page_state), sorted(target["targetId"] for target in targets)

    async def press(key: str) -> None:
        await page.devtools.evaluate("keys = []")
        await page.desktop.perform(Press(("ctrl", key)))

        async def arrived() -> bool:
            return key in await page.devtools.evaluate("keys")

        await until(arrived)

    await page.desktop.settle(SettlePolicy())
    state, screen = await seen(), await page.desktop.screenshot()
    signs = [sign for sign in string.printable[:94] if not sign.isalpha()]
    harmless = [sign for sign in signs if not leaves_traces(Press(("ctrl", sign)))]
    assert len(harmless) == 38
    for key in harmless:
        await press(key)
        assert await seen() == state, key
    await page.desktop.settle(SettlePolicy())
    np.testing.assert_array_equal(await page.desktop.screenshot(), screen)
    await press("+")
    await until(lambda: differs(seen, state))  # so that the comparison is known to see what a key does


async def differs(look, before: object) -> bool:
    return await look() != before


async def test_devtools_calls_overlap_and_errors_are_typed(page):
    slow = asyncio.create_task(
        page.devtools.evaluate("new Promise(done => setTimeout(() => done('slow'), 100))"),
    )
    assert await page.devtools.evaluate("[1, {a: 'é'}]") == [1, {"a": "é"}]
    assert await slow == "slow"
    with pytest.raises(DevToolsError, match="nonsense is not defined"):
        await page.devtools.evaluate("nonsense()")
    with pytest.raises(DevToolsError, match="No.Such"):
        await page.devtools.call("No.Such")
    with pytest.raises(DevToolsError, match="cannot load"):
        await page.devtools.navigate("http://127.0.0.1:9/")
    await page.devtools.close()
    with pytest.raises(DesktopError, match="closed"):
        await page.devtools.evaluate("1")


async def test_nothing_on_a_port_is_a_desktop_error(start_desktop):
    desktop = await start_desktop()
    with pytest.raises(DesktopError, match="no browser answers on port 1337"):
        await DevTools.connect(desktop)


async def test_a_browser_that_dies_ends_the_desktop(page, until):
    waiting = asyncio.create_task(page.devtools.evaluate("new Promise(() => 0)"))
    await page.devtools.evaluate("1")
    await launch_the_end(page.desktop, "sh", "-c", "kill -9 $(ps -o pid= -C chromium)")
    with pytest.raises(DesktopError, match="closed"):
        await waiting
    await until(lambda: not page.desktop.alive)
    with pytest.raises(DesktopError, match="chromium ended with status"):
        await page.desktop.screenshot()


async def test_a_browser_that_does_not_start_is_reported_with_its_log(monkeypatch):
    monkeypatch.setattr(browser, "FLAGS", ("--no-sandbox", "--ozone-platform=nonsense"))
    desktop = XvfbDesktop(DesktopSpec(width=168, height=224, profile="browser"))  # as its keeper
    with pytest.raises(DesktopError, match="(?s)chromium ended with status.*end of chromium.log:.*nonsense"):
        await desktop.start(timeout=30)


@pytest.mark.thorough
async def test_two_browsers_without_a_sandbox_do_not_meet(start_desktop):
    pages = []
    for number in range(2):
        desktop = await start_desktop(profile="browser", sandbox="none", width=168, height=224)
        pages.append((desktop, await DevTools.connect(desktop)))
        await pages[-1][1].navigate(f"data:text/html,<body style='background:rgb({number},9,9)'>")
    for number, (desktop, devtools) in enumerate(pages):
        await desktop.settle(SettlePolicy())
        np.testing.assert_array_equal((await desktop.screenshot())[200, 150], (number, 9, 9))
        await devtools.close()
