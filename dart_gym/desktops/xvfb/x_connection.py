"""A connection to the X server of one desktop, through a socket at any path, by python-xlib in this process."""

import asyncio
import contextlib
import itertools
import logging
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from Xlib import X, Xatom, Xutil
from Xlib import display as xdisplay
from Xlib import error as xerror
from Xlib.ext import xfixes, xtest
from Xlib.protocol import event, request, rq
from Xlib.support import connect

from dart_gym.core.errors import DesktopError
from dart_gym.desktops.base.framebuffer import Cursor

# Some windows promise to answer and never do (VLC's): after this many waits of this length they are not asked any more.
_MAX_SILENCES = 2
_SILENCE_S = 1.0
_ALIVE_PERIOD_S = 0.03
_POLL_S = 0.002
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


class _FakeInput(rq.Request):
    """XTEST FakeInput, packed here: python-xlib's own takes 30 us to build, which is most of what an event costs."""

    _layout = struct.Struct("=BBHBB2xII8xhh8x")

    def __init__(self, display: Any, opcode: int, kind: int, detail: int, x: int, y: int) -> None:
        self._display, self._serial = display, None
        self._binary = self._layout.pack(opcode, 2, self._layout.size // 4, kind, detail, 0, 0, x, y)
        display.send_request(self, False)


def _noted(error: xerror.XError, request: object) -> None:
    """A request that nobody waits for has failed: windows close while they are asked (python-xlib prints it)."""
    logging.getLogger(__name__).debug("X protocol error: %s", error)


class XConnection:
    """The host's connection to a desktop's X server; b"" for the cookie where it wants none."""

    def __init__(self, path: Path, cookie: bytes = b"") -> None:
        name = _SocketName("unix:0")
        name.path, name.cookie = path, cookie
        with translated_errors():
            self.display: Any = xdisplay.Display(name)
            self.display.set_error_handler(_noted)
            self.root: Any = self.display.screen().root
            self.display.xfixes_query_version()
        self._pings = itertools.count(1)
        self._silences: Counter[int] = Counter()
        self._xtest = self.display.display.get_extension_major(xtest.extname)
        self._xfixes = self.display.display.get_extension_major(xfixes.extname)

    def let_in(self, uid: int) -> None:
        """Let the programs of a user connect without the cookie, which not every library finds."""
        with translated_errors():
            self.display.change_hosts(X.HostInsert, _SERVER_INTERPRETED, list(b"localuser\0#%d" % uid))
            self.display.sync()

    def fake_input(self, kind: int, detail: int = 0, x: int = 0, y: int = 0) -> None:
        """Queue an event of pointer or keyboard: X.KeyPress and its kin with a keycode or button, or X.MotionNotify."""
        _FakeInput(self.display.display, self._xtest, kind, detail, x, y)

    def cursor(self) -> Cursor:
        """Where the pointer is and what it looks like, in one round trip."""
        with translated_errors():
            reply = _GetCursorImage(display=self.display.display, opcode=self._xfixes)
        count = reply.width * reply.height * 4
        pixels = np.frombuffer(reply.pixels, np.uint8, count).reshape(reply.height, reply.width, 4)
        return Cursor(reply.x - reply.xhot, reply.y - reply.yhot, pixels)

    def pointer(self) -> tuple[int, int]:
        """Where the pointer is."""
        with translated_errors():
            reply = self.root.query_pointer()
        return reply.root_x, reply.root_y

    def release_buttons(self) -> None:
        """Release all buttons that are down, even those that another client pressed."""
        with translated_errors():
            mask = self.root.query_pointer().mask
            for number in range(1, 6):
                if mask & X.Button1Mask << number - 1:
                    self.fake_input(X.ButtonRelease, number)

    def clear_selections(self) -> None:
        """Take the selections from the programs that own them: then there is nothing to paste."""
        with translated_errors():
            for name in ("PRIMARY", "SECONDARY", "CLIPBOARD"):
                request.SetSelectionOwner(
                    display=self.display.display, window=X.NONE, selection=self._atom(name), time=0
                )

    def carries_something(self) -> bool:
        """Return whether a program offers what is being dragged to others (XDND); some forget to end the offer."""
        with translated_errors():
            return bool(self.display.get_selection_owner(self._atom("XdndSelection")))

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

    def _active_window(self) -> Any:
        """The window with the keyboard, as the window manager says; None without one."""
        active = self.root.get_full_property(self._atom("_NET_ACTIVE_WINDOW"), Xatom.WINDOW)
        if active is None or not active.value[0]:
            return None
        return self.display.create_resource_object("window", active.value[0])

    def paint_root(self, color: int) -> None:
        """Fill the empty screen with a colour (0xRRGGBB)."""
        with translated_errors():
            self.root.change_attributes(background_pixel=color)
            self.root.clear_area()
            self.display.sync()

    async def wait_for_focused_program(self, timeout: float) -> bool:
        """Wait until the active window's program has read all events (`_NET_WM_PING`); False if it does not say."""
        with translated_errors():
            active = self._active_window()
            if active is None or self._silences[active.id] >= _MAX_SILENCES or not self._answers_pings(active):
                return False
            self.root.change_attributes(event_mask=X.SubstructureNotifyMask)  # answers go to the root window
            started, answered = time.monotonic(), False
            try:
                answered = await self._ping(active, started + timeout)
                return answered
            finally:
                if not answered and time.monotonic() - started > _SILENCE_S:
                    self._silences[active.id] += 1
                self.root.change_attributes(event_mask=X.NoEventMask)
                self.display.sync()
                for _ in range(self.display.pending_events()):
                    self.display.next_event()

    def _answers_pings(self, window: Any) -> bool:
        try:
            protocols = window.get_full_property(self._atom("WM_PROTOCOLS"), Xatom.ATOM)
        except xerror.BadWindow:
            return False  # closed just now
        return protocols is not None and self._atom("_NET_WM_PING") in protocols.value

    async def _ping(self, window: Any, deadline: float) -> bool:
        protocols, ping = self._atom("WM_PROTOCOLS"), self._atom("_NET_WM_PING")
        number = next(self._pings)
        data = (32, [ping, number, window.id, 0, 0])
        window.send_event(event.ClientMessage(window=window, client_type=protocols, data=data))
        look = time.monotonic() + _ALIVE_PERIOD_S
        while time.monotonic() < deadline:
            if time.monotonic() > look:
                active, look = self._active_window(), time.monotonic() + _ALIVE_PERIOD_S
                if active is None or active.id != window.id:
                    return False  # it was closed, or another window came: nobody will answer
            for _ in range(self.display.pending_events()):
                answer = self.display.next_event()
                if answer.type == X.ClientMessage and answer.client_type == protocols:
                    if list(answer.data[1][:2]) == [ping, number]:
                        return True
            await asyncio.sleep(_POLL_S)
        return False

    def _atom(self, name: str) -> int:
        return self.display.intern_atom(name)

    def close(self) -> None:
        """End the connection, also one that is broken already."""
        with contextlib.suppress(xerror.ConnectionClosedError, OSError):
            self.display.close()


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Make a broken connection, and a request that the X server refuses, a `DesktopError`."""
    try:
        yield
    except (xerror.ConnectionClosedError, xerror.DisplayConnectionError, OSError) as error:
        raise DesktopError(f"the desktop's X server does not answer: {error}") from error
    except xerror.XError as error:
        raise DesktopError(f"the desktop's X server refused a request: {error}") from error
