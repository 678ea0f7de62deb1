"""A desktop with bar and dock: only where asked for; they open applications, and leave windows their room."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dart_gym.core.actions import Click, Done, Scroll, Wait
from dart_gym.core.errors import ConfigurationError, TaskError
from dart_gym.desktops.base.desktop import DesktopSpec, SettlePolicy
from dart_gym.desktops.xvfb.xvfb_spec import check_spec
from dart_gym.sessions.session import Session
from dart_gym.tasks.catalog.registry import PANEL_VARIABLE, task_from_dict

BAR, DOCK = 32, 68
LARGE_TEXT = Path(__file__).parents[3] / "data/osworld/examples/os/3ce045a0-877b-42aa-8d2c-b4a863336ab8.json"
SETTLE = SettlePolicy(quiet_ms=300, max_ms=20_000)
TERMINAL, SETTINGS, ACCESSIBILITY, LARGER = (34, 511), (34, 567), (597, 669), (1366, 512)


async def windows(desktop) -> dict[str, tuple[int, ...]]:
    """Title -> x, y, width and height of the windows that are no panel."""
    lines = (await desktop.execute(["wmctrl", "-lG"])).stdout.decode().splitlines()
    rows = [line.split(None, 7) for line in lines if not line.endswith(" tint2")]
    return {row[7]: tuple(map(int, row[2:6])) for row in rows}


async def work_area(desktop) -> list[int]:
    text = (await desktop.execute(["xprop", "-root", "_NET_WORKAREA"])).stdout.decode()
    return [int(word) for word in text.partition("= ")[2].split(",")]


@pytest.mark.desktop
@pytest.mark.timeout(120)
async def test_bar_and_dock_are_there_open_applications_and_leave_windows_their_room(start_desktop, until):
    desktop = await start_desktop(profile="osworld", width=1920, height=1080, panel=True)
    assert await work_area(desktop) == [DOCK, BAR, 1920 - DOCK, 1080 - BAR]
    assert (await desktop.settle(SETTLE)).stable
    seen = await desktop.screenshot()
    assert (seen[:BAR, DOCK:].min(), seen[900:, :DOCK].min()) == (240, 240), "light, and empty where nothing is"
    assert len({tuple(pixel) for pixel in seen[BAR:620, :DOCK].reshape(-1, 3)}) > 500, "the icons of applications"
    await desktop.perform(Click(*TERMINAL))
    await until(lambda: opened(desktop, "Terminal"), timeout=30)
    (title,) = await windows(desktop)
    await desktop.execute(["wmctrl", "-r", title, "-b", "add,maximized_vert,maximized_horz"])
    assert (await desktop.settle(SETTLE)).stable
    after = await desktop.screenshot()
    assert (after[600:, :DOCK] == seen[600:, :DOCK]).all(), "it does not cover the dock"
    assert (after[BAR:, DOCK:] != seen[BAR:, DOCK:]).any(axis=2).mean() > 0.9, "and fills the rest"
    assert (after[:BAR] != seen[:BAR]).any(), "the bar names it"


async def opened(desktop, title: str) -> bool:
    return any(title in shown for shown in await windows(desktop))


@pytest.mark.desktop
async def test_without_the_option_no_panel_takes_room(start_desktop):
    desktop = await start_desktop(profile="osworld", width=1920, height=1080)
    assert await work_area(desktop) == [0, 0, 1920, 1080]
    assert (await desktop.execute(["pgrep", "tint2"])).returncode == 1


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.timeout(240)
async def test_a_task_of_osworld_is_done_in_gnomes_settings_by_mouse(monkeypatch):
    monkeypatch.setenv(PANEL_VARIABLE, "1")
    async with Session() as session:
        await session.reset(str(LARGE_TEXT), seed=0, max_steps=100)
        for action in (Click(*SETTINGS), Scroll(650, 600, dy=40), Click(*ACCESSIBILITY), Click(*LARGER)):
            await session.step(action)
            await rested(session)
        result = await session.step(Done())
    assert result.evaluation is not None and result.evaluation.score == 1.0


async def rested(session: Session) -> None:
    """Wait until two looks show one screen: what is drawn late is seen in the second."""
    seen = None
    while True:
        looked = await session.step(Wait(0.3))
        if looked.info["settled"] and np.array_equal(looked.observation.screenshot, seen):
            return
        seen = looked.observation.screenshot


def test_a_task_or_one_variable_asks_for_panels(monkeypatch):
    plain = json.loads(LARGE_TEXT.read_text())
    bare = {**plain, "dart": {"desktop": {"profile": "osworld"}}}
    assert not task_from_dict(plain).desktop.panel
    monkeypatch.setenv(PANEL_VARIABLE, "1")
    assert task_from_dict(plain).desktop.panel and not task_from_dict(bare).desktop.panel
    assert task_from_dict({**plain, "dart": {"desktop": {"profile": "osworld", "panel": True}}}).desktop.panel


def test_values_of_it_that_are_not_possible_are_named(monkeypatch):
    plain = json.loads(LARGE_TEXT.read_text())
    with pytest.raises(TaskError, match=r"dart\.desktop\.panel must be true or false, got 'yes'"):
        task_from_dict({**plain, "dart": {"desktop": {"panel": "yes"}}})
    with pytest.raises(ConfigurationError, match="a panel needs the profile osworld"):
        check_spec(DesktopSpec(profile="bare", panel=True))
    monkeypatch.setenv(PANEL_VARIABLE, "true")
    with pytest.raises(ConfigurationError, match=f"{PANEL_VARIABLE} must be 0 or 1, got 'true'"):
        task_from_dict(plain)
