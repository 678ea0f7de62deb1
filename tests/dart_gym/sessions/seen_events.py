"""What the programs of a desktop see of an episode: the events of its X server, and those of the browser's page.

The X server records what it delivers to its clients (the extension RECORD), and the page notes what reaches it, with
modifiers, locks and buttons. Left out is what tells nothing of the state: times, serial numbers, windows' ids, how
often a property is set, and the keys and clicks by which the scenario knows that the page has handled an action.
"""

from __future__ import annotations

import json
import struct
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

from Xlib import X
from Xlib.ext import record

from dart_gym.desktops.applications.devtools import DevTools
from dart_gym.desktops.keeper.kept_desktop import KeptDesktop
from dart_gym.desktops.xvfb.x_connection import XConnection
from dart_gym.tasks.suites.miniwob.miniwob_scenario import DEVTOOLS_PORT

_INPUT = range(X.KeyPress, X.LeaveNotify + 1)
_INPUT_KINDS = ("core", "input")
_EVENT_BYTES = 32
_SENTINELS = ("device 2 detail 2", "device 3 detail 127", "detail 2 at")
_LISTEN = """(() => {
  window.seenEvents = [];
  if (window.seenBefore) return;
  window.seenBefore = true;
  const locks = ['CapsLock', 'NumLock', 'ScrollLock', 'Shift', 'Control', 'Alt', 'Meta', 'AltGraph'];
  const note = event => {
    if (event.code === 'Pause' || event.button === 1) return;  // the scenario's own
    const told = [event.type, event.target.id || event.target.nodeName || 'window'];
    for (const name of ['key', 'code', 'repeat', 'button', 'buttons', 'clientX', 'clientY', 'detail', 'inputType',
        'data', 'deltaY']) if (name in event) told.push(`${name}=${event[name]}`);
    if (event.getModifierState) told.push(locks.filter(name => event.getModifierState(name)).join('+'));
    if (event.clipboardData) told.push(event.clipboardData.getData('text'));
    window.seenEvents.push(told.join(' '));
  };
  for (const type of ['keydown', 'keyup', 'beforeinput', 'input', 'paste', 'copy', 'cut', 'mousedown', 'mouseup',
      'click', 'dblclick', 'auxclick', 'contextmenu', 'wheel', 'dragstart', 'drop', 'compositionstart', 'focus', 'blur',
      'resize', 'visibilitychange', 'mousemove', 'change', 'submit'])
    window.addEventListener(type, note, {capture: true, passive: true});
})()"""


def display_socket(desktop: KeptDesktop) -> Path:
    """The socket of the desktop's X server: its keeper holds the directory."""
    for descriptor in Path(f"/proc/{desktop.keeper_pid}/fd").iterdir():
        for path in (descriptor / f"X{number}" for number in range(100)) if descriptor.is_dir() else ():
            if path.is_socket():
                return path
    raise LookupError("the keeper of the desktop holds no directory with the socket of an X server")


class SeenEvents:
    """Records from its making to `end`."""

    def __init__(self, desktop: KeptDesktop, page: DevTools) -> None:
        self._page = page
        path = display_socket(desktop)
        self._control, self._data = XConnection(path), XConnection(path)
        self._events: list[bytes] = []
        nothing: dict[str, Any] = {
            name: (0, 0) for name in ("core_requests", "core_replies", "device_events", "errors")
        }
        nothing |= {name: (0, 0, 0, 0) for name in ("ext_requests", "ext_replies")}
        wanted = {**nothing, "delivered_events": (2, 35), "client_started": False, "client_died": False}
        self._context = self._data.display.record_create_context(0, [record.AllClients], [wanted])
        self._data.display.sync()
        self._thread = threading.Thread(
            target=self._data.display.record_enable_context, args=(self._context, self._take), daemon=True
        )
        self._began = threading.Event()
        self._thread.start()

    @classmethod
    async def begin(cls, desktop: KeptDesktop) -> SeenEvents:
        """Begin to record."""
        traces = desktop.traces
        page = await DevTools.connect(desktop, port=DEVTOOLS_PORT)
        desktop.traces = traces  # looking changes nothing
        seen = cls(desktop, page)
        assert seen._began.wait(10), "the X server does not begin to record"
        await page.evaluate(_LISTEN)
        return seen

    async def end(self) -> dict[str, list[str]]:
        """What was seen: by kind of the X server's events, and "page"."""
        self._control.display.record_disable_context(self._context)
        self._control.display.sync()
        self._thread.join(10)
        page = await self._page_events()
        names = {atom: self._control.display.get_atom_name(atom) for atom in self._atoms()}
        found: defaultdict[str, list[str]] = defaultdict(list)
        for kind, text in (_described(event, names) for event in self._events):
            if not text.startswith(_SENTINELS) and (kind.startswith(_INPUT_KINDS) or text not in found[kind]):
                found[kind].append(text)
        for connection in (self._control, self._data):
            connection.close()
        await self._page.close()
        return {**found, "page": page}

    async def _page_events(self) -> list[str]:
        events = json.loads(await self._page.evaluate("JSON.stringify(window.seenEvents || [])"))
        return [str(event) for event in events]

    def _take(self, reply: Any) -> None:
        if reply.category == record.StartOfData:
            self._began.set()
        if reply.category == record.FromServer:
            data = bytes(reply.data)
            self._events += [data[start : start + _EVENT_BYTES] for start in range(0, len(data), _EVENT_BYTES)]

    def _atoms(self) -> set[int]:
        return {atom for event in self._events for atom in _atoms_of(event)}


def _atoms_of(event: bytes) -> tuple[int, ...]:
    match event[0] & 0x7F:
        case X.PropertyNotify:
            return struct.unpack_from("=I", event, 8)
        case X.SelectionClear:
            return struct.unpack_from("=I", event, 12)
        case X.SelectionRequest:
            return struct.unpack_from("=II", event, 16)
        case X.SelectionNotify:
            return struct.unpack_from("=II", event, 12)
        case X.ClientMessage:
            return struct.unpack_from("=I", event, 8)
    return ()


def _described(event: bytes, names: dict[int, str]) -> tuple[str, str]:
    """Kind and content of an event, without what tells nothing of the state."""
    code = event[0] & 0x7F
    if code == 35:
        kind, device, detail = struct.unpack_from("=HHxxxxI", event, 8)
        return f"input {kind}", f"device {device} detail {detail}"
    if code in _INPUT:
        x, y, _, _, state = struct.unpack_from("=hhhhH", event, 20)
        return f"core {code}", f"detail {event[1]} at {x},{y} state {state:#x}"
    atoms = " ".join(names[atom] for atom in _atoms_of(event))
    if code == X.PropertyNotify:
        return f"property {atoms}", f"state {event[16]}"
    if code == X.MappingNotify:
        return "mapping", event[4:7].hex()
    return f"event {code} {atoms}", f"detail {event[1]}"
