"""What pointer and keyboard need of a connection to an X server: events, where the pointer is, the focused program.

Invariants:
    - Nothing but python-xlib and the standard library is imported: OSWorld's machines run this module as well, where
      python3-xlib 0.15 may be what there is.
"""

import asyncio
import contextlib
import itertools
import struct
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from Xlib import X, Xatom
from Xlib import error as xerror
from Xlib.ext import xtest
from Xlib.protocol import event, request, rq

from dart_gym.core.errors import DesktopError

# Some windows promise to answer and never do: after this many waits of this length they are not asked any more.
_MAX_SILENCES = 2
_SILENCE_S = 1.0
_ALIVE_PERIOD_S = 0.03
_POLL_S = 0.002
_ANSWERS = X.SubstructureNotifyMask | X.StructureNotifyMask
"""Events of the root window that pings are answered by: the standard wants the first, Qt sends the second."""


class _FakeInput(rq.Request):
    """XTEST FakeInput, packed here: python-xlib's own takes 30 us to build, which is most of what an event costs."""

    _layout = struct.Struct("=BBHBB2xII8xhh8x")

    def __init__(self, display: Any, opcode: int, kind: int, detail: int, x: int, y: int) -> None:
        self._display, self._serial = display, None
        self._binary = self._layout.pack(opcode, 2, self._layout.size // 4, kind, detail, 0, 0, x, y)
        display.send_request(self, False)


class XClient:
    """A connection to an X server, as far as input needs it."""

    def __init__(self, display: Any) -> None:
        self.display = display
        self.root: Any = display.screen().root
        self._pings = itertools.count(1)
        self._silences: Counter[int] = Counter()
        self._xtest = display.display.get_extension_major(xtest.extname)

    def fake_input(self, kind: int, detail: int = 0, x: int = 0, y: int = 0) -> None:
        """Queue an event of pointer or keyboard: X.KeyPress and its kin with a keycode or button, or X.MotionNotify."""
        _FakeInput(self.display.display, self._xtest, kind, detail, x, y)

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

    def _active_window(self) -> Any:
        """The window with the keyboard, as the window manager says; None without one."""
        active = self.root.get_full_property(self._atom("_NET_ACTIVE_WINDOW"), Xatom.WINDOW)
        if active is None or not active.value[0]:
            return None
        return self.display.create_resource_object("window", active.value[0])

    async def wait_for_focused_program(self, timeout: float) -> bool:
        """Wait until the active window's program has handled all events (`_NET_WM_PING`); False if it does not say.

        Qt answers as soon as it has read the ping, and handles input that it read together with it afterwards. So a
        second ping follows, which it reads when that is done.
        """
        with translated_errors():
            active = self._active_window()
            if active is None or self._silences[active.id] >= _MAX_SILENCES or not self._answers_pings(active):
                return False
            self.root.change_attributes(event_mask=_ANSWERS)
            started, answered = time.monotonic(), False
            try:
                deadline = started + timeout
                answered = await self._ping(active, deadline) and await self._ping(active, deadline)
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


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Make a broken connection, and a request that the X server refuses, a `DesktopError`."""
    try:
        yield
    except (xerror.ConnectionClosedError, xerror.DisplayConnectionError, OSError) as error:
        raise DesktopError(f"the desktop's X server does not answer: {error}") from error
    except xerror.XError as error:
        raise DesktopError(f"the desktop's X server refused a request: {error}") from error
