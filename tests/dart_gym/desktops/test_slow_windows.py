"""Real desktops whose programs take their time: what is seen of a window that is drawn late."""

import dataclasses

import pytest

from dart_gym.core.actions import Click, Scroll
from dart_gym.desktops.base.desktop import SettlePolicy
from dart_gym.tasks.screen.windows import wait_for_window

pytestmark = pytest.mark.desktop
POLICY = SettlePolicy(quiet_ms=60.0, max_ms=2000.0, reply_quiet_ms=34.0, busy_ms=20_000.0)
RED = (255, 0, 0)
SLOW = """
import time, gi
gi.require_version("Gtk", "3.0")
from gi.repository import Gdk, Gtk
window = Gtk.Window(title="slow")
window.set_default_size(400, 300)
window.show_all()
while Gtk.events_pending():
    Gtk.main_iteration()
while time.process_time() < 1.5:
    pass
area = Gtk.EventBox()
area.override_background_color(0, Gdk.RGBA(1, 0, 0, 1))
window.add(area)
window.show_all()
Gtk.main()
"""
# Its main loop goes on and answers pings, while a thread works: a click makes it red after 0.4 s of that, a right click
# lets the thread work for ever.
WORKER = """
import threading, time, gi
gi.require_version("Gtk", "3.0")
from gi.repository import Gdk, GLib, Gtk
def paint():
    area.override_background_color(0, Gdk.RGBA(1, 0, 0, 1))
def work(endless):
    until = time.thread_time() + 0.4
    while endless or time.thread_time() < until:
        pass
    GLib.idle_add(paint)
def clicked(_, event):
    threading.Thread(target=work, args=[event.button == 3], daemon=True).start()
window = Gtk.Window(title="worker")
area = Gtk.EventBox()
area.connect("button-press-event", clicked)
window.add(area)
window.maximize()
window.show_all()
Gtk.main()
"""
# Waits for 0.3 s after a press, without a processor, and again after the release, and is red then. After a turn of the
# wheel it waits before it reads anything else, and then reads all that has come meanwhile at once.
QT_SLEEPER = """
import time
from PyQt5.QtWidgets import QApplication, QWidget
class Sleeper(QWidget):
    def wheelEvent(self, event):
        time.sleep(0.5)
    def mousePressEvent(self, event):
        time.sleep(0.3)
    def mouseReleaseEvent(self, event):
        time.sleep(0.3)
        self.setStyleSheet("background: #ff0000")
application = QApplication(["sleeper"])
window = Sleeper()
window.setWindowTitle("sleeper")
window.showMaximized()
application.exec_()
"""


def red(frame) -> int:
    return int((frame == RED).all(axis=2).sum())


async def test_a_window_that_is_drawn_after_a_second_and_a_half_of_work_is_waited_for(start_desktop):
    desktop = await start_desktop(width=640, height=480)
    await desktop.write_file("slow.py", SLOW.encode())
    await desktop.launch(["python3", "slow.py"])
    plain = await desktop.settle(dataclasses.replace(POLICY, busy_ms=0.0))
    assert red(await desktop.screenshot()) == 0 and plain.waited_s < 1.5, "the screen alone says nothing"
    settled = await desktop.settle(POLICY)
    assert settled.stable and red(await desktop.screenshot()) > 100_000


async def test_a_program_that_never_rests_holds_no_wait_beyond_its_cap_and_few_in_all(start_desktop):
    desktop = await start_desktop(width=640, height=480)
    await desktop.launch(["sh", "-c", "while :; do :; done"])
    policy = dataclasses.replace(POLICY, max_ms=200.0, busy_ms=600.0)
    results = [await desktop.settle(policy) for _ in range(6)]
    assert not results[0].stable and results[0].waited_s >= 0.6
    assert results[-1].stable and results[-1].waited_s < 0.6


async def test_what_a_program_works_out_after_a_click_is_waited_for(start_desktop):
    desktop = await start_worker(start_desktop)
    await desktop.perform(Click(300, 240))
    settled = await desktop.settle(dataclasses.replace(POLICY, max_ms=20_000.0))
    assert settled.stable and red(await desktop.screenshot()) > 100_000
    assert (await desktop.settle(POLICY)).waited_s < settled.waited_s, "it is at rest"


async def test_a_program_that_works_for_ever_after_a_click_holds_three_waits_to_the_cap(start_desktop):
    desktop = await start_worker(start_desktop)
    await desktop.perform(Click(300, 240, button="right"))
    policy = dataclasses.replace(POLICY, max_ms=400.0, busy_ms=400.0)
    results = [await desktop.settle(policy) for _ in range(5)]
    assert [settled.stable for settled in results] == [False, False, False, True, True]


async def start_worker(start_desktop):
    """A desktop on which the program above has rested."""
    desktop = await start_desktop(width=640, height=480)
    await desktop.write_file("worker.py", WORKER.encode())
    await desktop.launch(["python3", "worker.py"])
    await wait_for_window(desktop, "worker", timeout=30.0)
    assert (await desktop.settle(dataclasses.replace(POLICY, quiet_ms=200.0, reply_quiet_ms=200.0))).stable
    return desktop


@pytest.mark.parametrize("before", [(), (Scroll(320, 240, dy=1),)], ids=["at-rest", "busy"])
async def test_a_window_of_qt_says_when_it_has_handled_its_input(start_desktop, before):
    desktop = await start_desktop(width=640, height=480)
    await desktop.write_file("sleeper.py", QT_SLEEPER.encode())
    await desktop.launch(["/usr/bin/python3", "sleeper.py"])
    await wait_for_window(desktop, "sleeper", timeout=30.0)
    await desktop.settle(SettlePolicy(quiet_ms=300.0, max_ms=5000.0))
    for action in (*before, Click(320, 240)):
        await desktop.perform(action)
    settled = await desktop.settle(dataclasses.replace(POLICY, max_ms=10_000.0))
    assert settled.stable and settled.waited_s < 5.0 and red(await desktop.screenshot()) > 100_000
