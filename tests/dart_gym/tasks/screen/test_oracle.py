"""Oracle scripts: their grammar, and their waits and places on a real desktop."""

import numpy as np
import pytest

from dart_gym.core.actions import Click, Done, Drag, Type
from dart_gym.core.errors import DesktopTimeoutError, TaskError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.osworld.oracle_script import Script, expand
from dart_gym.tasks.screen.readiness import colours, wait_until_ready
from dart_gym.tasks.screen.windows import Geometry

PRESS = {"kind": "press", "keys": ["enter"]}
NOTE = ["zenity", "--info", "--title=Note (1)", "--text=Hello there", "--width=200"]


@pytest.fixture
async def desktop():
    desktop = make_desktop(DesktopSpec(width=320, height=240))
    await desktop.start()
    yield desktop
    await desktop.stop()


@pytest.mark.parametrize("when", [None, [], "Note", {"windows": "Note"}, {"after": 3}])
def test_a_bad_condition_is_refused(when):
    with pytest.raises(TaskError, match="action 2 of dart.oracle: 'when'"):
        expand("x", [PRESS, {**PRESS, "when": when}])


def test_a_window_counts_as_painted_by_its_colours():
    screen = np.zeros((40, 60, 3), np.uint8)
    screen[10:20, 5:15, 0] = np.arange(10)
    assert colours(screen, Geometry(0, 0, 60, 40)) == 10
    assert colours(screen, Geometry(30, 0, 60, 40)) == 1
    assert colours(screen, Geometry(-5, -5, 14, 30)) == 4


@pytest.mark.desktop
async def test_a_script_waits_and_finds_its_places(desktop):
    script = Script(
        "x",
        [
            {"kind": "type", "text": 12},
            {"kind": "click", "window": "Note", "left": 10, "top": 5, "when": {"window": "Note (1)"}},
            {"kind": "drag", "window": "Note", "path": [[1, 2], [30, 40]]},
            {"kind": "type", "text": "late", "when": {"command": "test -e ready"}},
            {"kind": "type", "text": "after", "when": {"gone": "Note (1)", "still": 0.2}},
        ],
    )
    assert await script.action(desktop, 0) == Type("12")
    await desktop.launch(["/bin/sh", "-c", "sleep 0.3; " + " ".join(f"'{word}'" for word in NOTE) + "; touch ready"])
    click = await script.action(desktop, 1)
    assert isinstance(click, Click) and click.x is not None and click.y is not None
    left, top = click.x - 10, click.y - 5
    assert left > 0 and top > 0
    assert await script.action(desktop, 2) == Drag(((left + 1, top + 2), (left + 30, top + 40)))
    await desktop.execute(["pkill", "zenity"])
    assert await script.action(desktop, 3) == Type("late")
    assert await script.action(desktop, 4) == Type("after")
    assert await script.action(desktop, 5) == Done()


@pytest.mark.desktop
async def test_what_a_script_waits_for_in_vain_is_named(desktop):
    script = Script(
        "suite/x",
        [
            {**PRESS, "when": {"window": "Nowhere", "timeout": 0.2}},
            {**PRESS, "when": {"command": "false", "timeout": 0.2}},
            {"kind": "click", "window": "Nowhere", "left": 1, "top": 1},
            {"kind": "press"},
        ],
    )
    for taken, cause in enumerate(["'Nowhere' did not", "'false' did not", "'Nowhere' is not shown", "press"]):
        with pytest.raises(TaskError, match=rf"suite/x: action {taken + 1} of dart.oracle: .*{cause}"):
            await script.action(desktop, taken)
    with pytest.raises(TaskError, match="no oracle"):
        await Script("suite/x", []).action(desktop, 0)


@pytest.mark.desktop
async def test_a_task_begins_when_its_window_is_painted(desktop):
    with pytest.raises(DesktopTimeoutError, match="Note"):
        await wait_until_ready(desktop, {"window": "Note (1)"}, timeout=0.2)
    await desktop.launch(NOTE)
    assert (await wait_until_ready(desktop, {"window": "Note (1)"})).stable
    with pytest.raises(DesktopTimeoutError, match="not painted"):
        await wait_until_ready(desktop, {"window": "Note (1)", "colours": 100_000}, timeout=0.2)
