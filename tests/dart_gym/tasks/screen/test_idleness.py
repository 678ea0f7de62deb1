"""When programs have done what they were told: by the processor time that they use and wait for."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from dart_gym.desktops.base.desktop import DesktopSpec, SettlePolicy
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.screen.idleness import Stillness, demand, parse, wait_until_idle
from dart_gym.tasks.screen.windows import wait_for_window

BUSY = "import time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass\ntime.sleep(60)"
SILENT = """
import time
from Xlib import X, Xatom, display
d = display.Display()
window = d.screen().root.create_window(10, 10, 200, 100, 0, d.screen().root_depth)
window.set_wm_name("silent")
window.change_property(d.intern_atom("WM_PROTOCOLS"), Xatom.ATOM, 32, [d.intern_atom("_NET_WM_PING")])
window.map()
d.sync()
time.sleep(60)
"""


def test_demand_counts_what_threads_used_since():
    before = {"a": 1.0, "b": 2.0, "ended": 9.0}
    assert demand(before, {"a": 1.5, "b": 2.0, "new": 0.25}) == 0.75


def test_readings_are_running_plus_waiting_in_seconds():
    assert parse("/proc/1/task/1 1000000000 500000000\n/proc/1/task/2 0 250000000\n") == {
        "/proc/1/task/1": 1.5,
        "/proc/1/task/2": 0.25,
    }


def test_a_caret_and_a_clock_do_not_keep_a_screen_from_standing_still():
    screen = np.zeros((100, 100, 3), np.uint8)
    caret, page = screen.copy(), screen.copy()
    caret[10:25, 40] = 255
    page[20:80, 20:80] = 255
    still = Stillness(0.0)
    assert [still.seconds(now, seen) for now, seen in enumerate([screen, caret, screen, page, page])] == [0, 1, 2, 0, 1]


@pytest.fixture(params=["bwrap", "none"])
async def desktop(request):
    desktop = make_desktop(DesktopSpec(width=320, height=240, sandbox=request.param))
    await desktop.start()
    yield desktop
    await desktop.stop()


@pytest.mark.desktop
async def test_a_working_program_is_waited_for_although_the_screen_stands_still(desktop):
    started = time.monotonic()
    await desktop.launch(["/usr/bin/python3", "-c", BUSY.format(seconds=2.0)])
    waited = await wait_until_idle(desktop, timeout=30.0)
    assert waited.stable and time.monotonic() - started >= 2.0


@pytest.mark.desktop
async def test_a_program_that_never_rests_is_not_waited_for_longer_than_asked(desktop):
    await desktop.launch(["/usr/bin/python3", "-c", BUSY.format(seconds=60.0)])
    waited = await wait_until_idle(desktop, timeout=1.5)
    assert not waited.stable and 1.5 <= waited.waited_s < 10.0


@pytest.mark.desktop
async def test_programs_of_the_machine_are_not_the_desktops(desktop):
    busy = [subprocess.Popen([sys.executable, "-c", BUSY.format(seconds=60.0)]) for _ in range(2)]
    try:
        waited = await wait_until_idle(desktop, timeout=20.0)
        assert waited.stable and waited.waited_s < 20.0
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.desktop
async def test_a_window_that_never_answers_is_not_asked_for_ever(desktop):
    await desktop.launch(["/usr/bin/python3", "-c", SILENT])
    await wait_for_window(desktop, "silent", timeout=20.0)
    policy = SettlePolicy(quiet_ms=60.0, max_ms=1500.0, reply_quiet_ms=30.0)
    waits = [await desktop.settle(policy) for _ in range(4)]
    assert [wait.stable for wait in waits][-1] and waits[-1].waited_s < 1.0
    assert not waits[0].stable or waits[0].waited_s < 1.6  # the last look may begin just before the limit
