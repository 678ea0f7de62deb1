"""A connection to the X server of one desktop, through a socket at any path, by python-xlib in this process."""

import asyncio
import contextlib
import logging
import socket
from pathlib import Path

import numpy as np
from Xlib import X, Xatom, Xutil
from Xlib import display as xdisplay
from Xlib import error as xerror
from Xlib.ext import xfixes
from Xlib.protocol import event, rq
from Xlib.support import connect

from dart_gym.desktops.base.framebuffer import Cursor
from dart_gym.desktops.xvfb.x_client import XClient, translated_errors

_SERVER_INTERPRETED = 5  # family of addresses


class _SocketName(str):
    """A display name that carries the path of its socket, and the cookie that its server wants."""

    path: Path
    cookie: bytes


_get_socket, _get_auth = connect.get_socket, connect.get_auth


def _socket_of(name: str, protocol: str | None, host: str, number: int) -> socket.socket:
    if not isinstance(name, _SocketName):
        return _get_socket(name, protocol, host, number)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(name.path))
    except OSError:
        connection.close()
        raise
    return connection


def _auth_of(sock: socket.socket, name: str, protocol: str | None, host: str, number: int) -> tuple[bytes, bytes]:
    if not isinstance(name, _SocketName):
        return _get_auth(sock, name, protocol, host, number)
    return (b"MIT-MAGIC-COOKIE-1", name.cookie) if name.cookie else (b"", b"")


# python-xlib connects to /tmp/.X11-unix only and offers no other hook; names of other types keep their old way.
connect.get_socket, connect.get_auth = _socket_of, _auth_of


class _GetCursorImage(rq.ReplyRequest):
    """XFixes GetCursorImage whose pixels stay bytes (python-xlib's own makes a list of integers)."""

    _request = rq.Struct(rq.Card8("opcode"), rq.Opcode(4), rq.RequestLength())
    _reply = rq.Struct(
        rq.ReplyCode(),
        rq.Pad(1),
        rq.Card16("sequence_number"),
        rq.ReplyLength(),
        rq.Int16("x"),
        rq.Int16("y"),
        rq.Card16("width"),
        rq.Card16("height"),
        rq.Card16("xhot"),
        rq.Card16("yhot"),
        rq.Card32("serial"),
        rq.Pad(8),
        rq.Binary("pixels"),
    )


def _noted(error: xerror.XError, request: object) -> None:
    """A request that nobody waits for has failed: windows close while they are asked (python-xlib prints it)."""
    logging.getLogger(__name__).debug("X protocol error: %s", error)


class XConnection(XClient):
    """The host's connection to a desktop's X server; b"" for the cookie where it wants none."""

    def __init__(self, path: Path, cookie: bytes = b"") -> None:
        name = _SocketName("unix:0")
        name.path, name.cookie = path, cookie
        with translated_errors():
            display = xdisplay.Display(name)
            display.set_error_handler(_noted)
            display.xfixes_query_version()
            super().__init__(display)
        self._xfixes = display.display.get_extension_major(xfixes.extname)

    def let_in(self, uid: int) -> None:
        """Let the programs of a user connect without the cookie, which not every library finds."""
        with translated_errors():
            self.display.change_hosts(X.HostInsert, _SERVER_INTERPRETED, list(b"localuser\0#%d" % uid))
            self.display.sync()

    def cursor(self) -> Cursor:
        """Where the pointer is and what it looks like, in one round trip."""
        with translated_errors():
            reply = _GetCursorImage(display=self.display.display, opcode=self._xfixes)
        count = reply.width * reply.height * 4
        pixels = np.frombuffer(reply.pixels, np.uint8, count).reshape(reply.height, reply.width, 4)
        return Cursor(reply.x - reply.xhot, reply.y - reply.yhot, pixels)

    def has_window_manager(self) -> bool:
        """Return whether a window manager has announced itself (EWMH `_NET_SUPPORTING_WM_CHECK`)."""
        with translated_errors():
            return self.root.get_full_property(self._atom("_NET_SUPPORTING_WM_CHECK"), Xatom.WINDOW) is not None

    async def window_manager_answers(self, period: float) -> None:
        """Wait until the window manager handles requests, after it has taken its keys (it announces itself before)."""
        extents, mask = self._atom("_NET_FRAME_EXTENTS"), X.SubstructureRedirectMask | X.SubstructureNotifyMask
        with translated_errors():
            window = self.root.create_window(0, 0, 1, 1, 0, X.CopyFromParent)
            question = self._atom("_NET_REQUEST_FRAME_EXTENTS")
            request = event.ClientMessage(window=window, client_type=question, data=(32, [0] * 5))
            while window.get_full_property(extents, Xatom.CARDINAL) is None:
                self.root.send_event(request, event_mask=mask)  # again, for what comes too early is lost
                await asyncio.sleep(period)
            window.destroy()
            self.display.sync()

    def has_panels(self) -> bool:
        """Return whether a bar at the top and a dock at the left have reserved their room (`_NET_WORKAREA`)."""
        with translated_errors():
            area = self.root.get_full_property(self._atom("_NET_WORKAREA"), Xatom.CARDINAL)
        return area is not None and area.value[0] > 0 and area.value[1] > 0

    def has_active_window(self) -> bool:
        """Return whether a window has the keyboard."""
        with translated_errors():
            return self._active_window() is not None

    def active_window_fits(self, width: int, height: int) -> bool:
        """Return whether the active window has the given size; its own limits are taken from it if they forbid that.

        Chromium does not want to be narrower than 500 pixels, and window managers respect it even in full screen.
        """
        with translated_errors():
            active = self._active_window()
            if active is None:
                return False
            try:
                geometry = active.get_geometry()
                hints = active.get_wm_normal_hints()
            except (xerror.BadWindow, xerror.BadDrawable):
                return False  # gone in between
            if (geometry.width, geometry.height) == (width, height):
                return True
            if hints is not None and hints.flags & Xutil.PMinSize:
                hints.flags &= ~Xutil.PMinSize
                active.set_wm_normal_hints(hints)
                self.display.sync()
        return False

    def paint_root(self, color: int) -> None:
        """Fill the empty screen with a colour (0xRRGGBB)."""
        with translated_errors():
            self.root.change_attributes(background_pixel=color)
            self.root.clear_area()
            self.display.sync()

    def close(self) -> None:
        """End the connection, also one that is broken already."""
        with contextlib.suppress(xerror.ConnectionClosedError, OSError):
            self.display.close()
