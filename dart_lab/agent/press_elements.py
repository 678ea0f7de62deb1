"""Runs inside a desktop, with the system's Python: presses points of the screen, and prints who says to have felt it.

Argument: JSON of [x, y, how], how being "press" (and release elsewhere, so that most elements do nothing), "hover"
(items of an open menu) or "click" (menus, closed again by Escape). Prints a list for each point: role, name and box of
the elements that were focused, pressed, armed, checked, selected or expanded.
"""

import json
import sys
import time

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib  # noqa: E402
from Xlib import XK, X, display  # noqa: E402
from Xlib.ext import xtest  # noqa: E402

TOLD: list = []
WAIT_S, MORE_S = 0.6, 0.05


def note(event):
    """Keep what an element tells of itself."""
    if not event.detail1:
        return
    try:
        box = Atspi.Component.get_extents(event.source, Atspi.CoordType.SCREEN)
        role, name = event.source.get_role_name(), event.source.get_name()
    except GLib.Error:
        return  # it is gone
    TOLD.append(((role or "").replace(" ", "-"), name or "", (box.x, box.y, box.width, box.height)))


def wait(seconds, until=lambda: False):
    """Take in events for so long, or until something holds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until():
        if not GLib.MainContext.default().iteration(False):
            time.sleep(0.004)


def main():
    """Press all points."""
    Atspi.set_timeout(3000, 3000)
    listener, screen = Atspi.EventListener.new(note), display.Display()
    for kind in ("focused", "pressed", "armed", "checked", "selected", "expanded"):
        listener.register(f"object:state-changed:{kind}")
    wait(0.4)
    escape, found = screen.keysym_to_keycode(XK.XK_Escape), []

    def send(kind, detail=0, **place):
        xtest.fake_input(screen, kind, detail, **place)
        screen.sync()

    for x, y, how in json.loads(sys.argv[1]):
        TOLD.clear()
        send(X.MotionNotify, x=x, y=y)
        if how != "hover":
            send(X.ButtonPress, 1)
        wait(WAIT_S, lambda: TOLD)
        wait(MORE_S)
        found.append(list(TOLD))
        if how == "press":
            send(X.MotionNotify, x=1, y=1)
        if how != "hover":
            send(X.ButtonRelease, 1)
        if how == "click":
            wait(MORE_S)
            send(X.KeyPress, escape)
            send(X.KeyRelease, escape)
        wait(MORE_S)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
