"""Our evaluation of OSWorld's tasks gives what the unmodified `DesktopEnv.evaluate` gives on the same desktop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.evaluation.evaluator import evaluate
from tests.dart_gym.stock_osworld import stock_score_on

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[3] / "data" / "osworld" / "examples"
LIBREOFFICE = "~/.config/libreoffice/4/user/registrymodifications.xcu"
SAVING = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry"><item oor:path="/org.openoffice.Office.Common/Save/Document">
<prop oor:name="AutoSaveTimeIntervall" oor:op="fuse"><value>{minutes}</value></prop></item></oor:items>"""


def task(identifier: str) -> dict:
    """One of OSWorld's tasks, by the beginning of its id."""
    (path,) = EXAMPLES.glob(f"*/{identifier}*.json")
    return json.loads(path.read_text())


@pytest.fixture
async def machine():
    desktop = make_desktop(DesktopSpec(profile="osworld"))
    await desktop.start()
    yield desktop
    await desktop.stop()


async def both(machine, raw: dict, terminal: TerminalState = TerminalState.DONE) -> tuple[float | None, float | None]:
    """OSWorld's score and ours."""
    stock = await stock_score_on(machine, raw, "FAIL" if terminal is TerminalState.FAIL else "DONE")
    ours = await evaluate(machine, raw["evaluator"], terminal, official=True)
    assert ours.status is EvaluationStatus.OK, ours
    return stock, ours.score


@pytest.mark.slow
async def test_a_folder_is_renamed(machine):
    raw = task("e0df059f")
    await stock_score_on(machine, raw, None, set_up=True)
    assert (await machine.execute(["test", "-d", "/home/user/Desktop/todo_list_Jan_1"])).returncode == 0
    assert await both(machine, raw) == (0.0, 0.0)
    await machine.execute(["mv", "/home/user/Desktop/todo_list_Jan_1", "/home/user/Desktop/todo_list_Jan_2"])
    assert await both(machine, raw) == (1.0, 1.0)
    assert await both(machine, raw, TerminalState.FAIL) == (0.0, 0.0)


@pytest.mark.slow
async def test_a_setting_in_a_file_of_gimp(machine):
    raw = task("7b7617bd")
    await machine.write_file("~/.config/GIMP/2.10/gimprc", b"(undo-levels 5)\n")
    assert await both(machine, raw) == (0.0, 0.0)
    await machine.write_file("~/.config/GIMP/2.10/gimprc", b"# comment\n(undo-levels 100)\n")
    assert await both(machine, raw) == (1.0, 1.0)


@pytest.mark.thorough
async def test_a_setting_in_a_file_of_libreoffice(machine):
    raw = task("2cd43775")
    await machine.write_file(LIBREOFFICE, SAVING.format(minutes=10).encode())
    assert await both(machine, raw) == (0.0, 0.0)
    await machine.write_file(LIBREOFFICE, SAVING.format(minutes=3).encode())
    assert await both(machine, raw) == (1.0, 1.0)


@pytest.mark.thorough
async def test_one_of_two_settings_is_enough(machine):
    raw = task("3ce045a0")
    assert await both(machine, raw) == (0.0, 0.0)
    await machine.execute(["gsettings", "set", "org.gnome.desktop.interface", "text-scaling-factor", "1.25"])
    assert await both(machine, raw) == (1.0, 1.0)


@pytest.mark.thorough
async def test_an_infeasible_task(machine):
    raw = task("c288e301")
    assert await both(machine, raw) == (0.0, 0.0)
    assert await both(machine, raw, TerminalState.FAIL) == (1.0, 1.0)
